#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "jit/emitter.h"
#include "jit/expression/epilogue.h"
#include "jit/kernels/conv/conv_epilogue.h"

namespace lathe {

// Emits accumulate-store of one group of registers: value = expression(value, operands), then a store.
class ConvEpilogueEmitter {
 public:
  ConvEpilogueEmitter(Xbyak::CodeGenerator& code, Isa isa, const ConvEpilogue& epilogue);

  bool is_empty() const { return !emitter_; }
  int temps_needed() const { return emitter_ ? emitter_->temps_needed() : 0; }

  // `pointers`: address of the operand pointers (const void*[]); `scratch`: a free register.
  // `full_at`: offset of this vector in operands of kind full; `channel_at`: in those per channel, in bytes.
  void apply(const Xbyak::Xmm& value, std::span<const Xbyak::Xmm> temps, const Xbyak::RegExp& pointers,
             const Xbyak::Reg64& scratch, const Xbyak::RegExp& full_at, int channel_at);
  // The same for several vectors at a time, so that one's latency hides behind the others. `temps`: temps_needed() for
  // each; `full_at(which)`: for the vector of this number.
  void apply(std::span<const Xbyak::Xmm> values, std::span<const Xbyak::Xmm> temps, const Xbyak::RegExp& pointers,
             const Xbyak::Reg64& scratch, const std::function<Xbyak::RegExp(size_t which)>& full_at, int channel_at);
  void emit_constants() {
    if (emitter_) emitter_->emit_constants();
  }

 private:
  Xbyak::CodeGenerator& code_;
  std::vector<ConvOperand> operands_;
  std::optional<EpilogueEmitter> emitter_;
};

}  // namespace lathe
