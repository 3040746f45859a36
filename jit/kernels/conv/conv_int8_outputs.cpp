#include "jit/kernels/conv/conv_int8_outputs.h"

#include <algorithm>

namespace lathe {

ConvInt8Outputs::ConvInt8Outputs(Isa isa, const ConvEpilogue& epilogue, const Int8Store& store,
                                 BytesTimesConstants bytes)
    : Int8Emitter(isa), epilogue_plan_(epilogue), store_(store) {
  if (!epilogue.expression) return;
  epilogue_ =
      std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), isa, *epilogue.expression, bytes);
}

int ConvInt8Outputs::temps_needed() const {
  return std::max(epilogue_ ? epilogue_->temps_needed() : 0, store_temps(store_));
}

int ConvInt8Outputs::stored_together(std::span<const int32_t> stores, int pixel) const {
  if (!stores_bytes(store_)) return 1;
  const auto first = static_cast<size_t>(pixel);
  int count = 1;
  while (count < 4 && first + static_cast<size_t>(count) < stores.size() &&
         stores[first + static_cast<size_t>(count)] == stores[first] + count * lanes()) {
    ++count;
  }
  return count == 3 ? 2 : count;
}

void ConvInt8Outputs::finish_sum(size_t part, const Vec& sum, std::span<const Vec> temps,
                                 const std::function<void(size_t operand, const Vec& into)>& load) {
  if (part == 0) return vcvtdq2ps(sum, sum);
  epilogue_->apply_part(part - 1, sum, temps,
                        [&](int slot, const Xbyak::Xmm& into) { load(static_cast<size_t>(slot - 1), into); });
}

void ConvInt8Outputs::store_finished(const Xbyak::RegExp& at, std::span<const Vec> sums, std::span<const Vec> temps) {
  if (!epilogue_) return store(at, sums[0]);
  if (stores_bytes(store_)) return store_requantized(at, sums, store_, temps);
  store_as(at, sums[0], store_.dtype, sums[0]);
}

int ConvInt8Outputs::operand_bytes(size_t operand) const {
  return static_cast<int>(bits_of(operand_type(operand)) / 8);
}

void ConvInt8Outputs::load_operand(size_t operand, const Vec& into, const Xbyak::RegExp& at) {
  if (epilogue_->takes_bytes(static_cast<int>(operand) + 1)) return load_bytes(operand, into, at);
  if (epilogue_plan_.operands[operand] == ConvOperand::scalar)
    return broadcast_as_float(into, at, operand_type(operand));
  load_as_float(into, at, operand_type(operand));
}

// In lanes of 32 bits.
void ConvInt8Outputs::load_bytes(size_t operand, const Vec& into, const Xbyak::RegExp& at) {
  const Xbyak::Xmm low(into.getIdx());
  const bool is_scalar = epilogue_plan_.operands[operand] == ConvOperand::scalar;
  if (is_scalar) vpbroadcastb(low, byte[at]);
  const Xbyak::Address memory = ptr[at];
  const Xbyak::Operand& bytes = is_scalar ? static_cast<const Xbyak::Operand&>(low) : memory;
  operand_type(operand) == DType::u8 ? vpmovzxbd(into, bytes) : vpmovsxbd(into, bytes);
}

void ConvInt8Outputs::emit_output_constants() {
  if (epilogue_) epilogue_->emit_constants();
  if (stores_bytes(store_)) emit_requantization(store_);
}

}  // namespace lathe
