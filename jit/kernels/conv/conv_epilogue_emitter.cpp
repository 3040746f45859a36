#include "jit/kernels/conv/conv_epilogue_emitter.h"

namespace lathe {

ConvEpilogueEmitter::ConvEpilogueEmitter(Xbyak::CodeGenerator& code, Isa isa, const ConvEpilogue& epilogue)
    : code_(code), operands_(epilogue.operands) {
  if (static_cast<int>(operands_.size()) > ConvEpilogue::kMaxOperands) throw JitError("too many epilogue operands");
  if (!epilogue.expression) return;
  if (epilogue.expression->output != DType::f32) throw JitError("convolution epilogues store float32 only");
  for (DType dtype : epilogue.expression->inputs) {
    if (dtype != DType::f32) throw JitError("convolution epilogues read float32 only");
  }
  emitter_.emplace(code, isa, *epilogue.expression);
}

void ConvEpilogueEmitter::apply(const Xbyak::Xmm& value, std::span<const Xbyak::Xmm> temps,
                                const Xbyak::RegExp& pointers, const Xbyak::Reg64& scratch,
                                const Xbyak::RegExp& full_at, int channel_at) {
  apply(
      std::span(&value, 1), temps, pointers, scratch, [&](size_t) { return full_at; }, channel_at);
}

void ConvEpilogueEmitter::apply(std::span<const Xbyak::Xmm> values, std::span<const Xbyak::Xmm> temps,
                                const Xbyak::RegExp& pointers, const Xbyak::Reg64& scratch,
                                const std::function<Xbyak::RegExp(size_t which)>& full_at, int channel_at) {
  emitter_->apply(values, temps, [&](size_t which, int slot, const Xbyak::Xmm& into) {
    code_.mov(scratch, code_.qword[pointers + (slot - 1) * 8]);
    switch (operands_.at(static_cast<size_t>(slot - 1))) {
      case ConvOperand::scalar:
        code_.vbroadcastss(into, code_.dword[scratch]);
        break;
      case ConvOperand::per_channel:
        code_.vmovups(into, code_.ptr[scratch + channel_at]);
        break;
      case ConvOperand::full:
        code_.vmovups(into, code_.ptr[scratch + full_at(which)]);
        break;
    }
  });
}

}  // namespace lathe
