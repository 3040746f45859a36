#pragma once
// Appends operations to a VectorProgram: folds constants, shares equal operations, puts operands into the order that
// VectorProgram promises.
#include <bit>
#include <map>
#include <tuple>

#include "jit/expression/vector_program.h"

namespace lathe {

class VectorBuilder {
 public:
  using Id = int;
  explicit VectorBuilder(Isa isa) : isa_(isa) {}

  Isa isa() const { return isa_; }
  Id input(int number) { return append({VecOp::input, {}, static_cast<uint32_t>(number)}); }
  Id constant(float value) { return constant_bits(std::bit_cast<uint32_t>(value)); }
  Id constant_bits(uint32_t bits) { return append({VecOp::constant, {}, bits}); }

  Id add(Id a, Id b) { return binary(VecOp::add, a, b); }
  Id sub(Id a, Id b) { return binary(VecOp::sub, a, b); }
  Id mul(Id a, Id b) { return binary(VecOp::mul, a, b); }
  Id div(Id a, Id b);
  Id min(Id a, Id b) { return binary(VecOp::min, a, b); }
  Id max(Id a, Id b) { return binary(VecOp::max, a, b); }
  Id fma(Id a, Id b, Id c) { return multiply_add(VecOp::fma, a, b, c); }
  Id fnma(Id a, Id b, Id c) { return multiply_add(VecOp::fnma, a, b, c); }
  Id fms(Id a, Id b, Id c) { return multiply_add(VecOp::fms, a, b, c); }
  Id sqrt(Id a) { return unary(VecOp::sqrt, a, 0); }
  Id round(Id a, uint32_t mode) { return unary(VecOp::round, a, mode); }
  Id bit_and(Id a, Id b) { return binary(VecOp::bit_and, a, b); }
  Id bit_or(Id a, Id b) { return binary(VecOp::bit_or, a, b); }
  Id bit_xor(Id a, Id b) { return binary(VecOp::bit_xor, a, b); }
  Id to_int(Id a) { return unary(VecOp::to_int, a, 0); }
  Id from_int(Id a) { return unary(VecOp::from_int, a, 0); }
  Id int_add(Id a, Id b) { return binary(VecOp::int_add, a, b); }
  Id int_sub(Id a, Id b) { return binary(VecOp::int_sub, a, b); }
  Id shift_left(Id a, uint32_t count) { return unary(VecOp::shift_left, a, count); }
  Id shift_right(Id a, uint32_t count) { return unary(VecOp::shift_right, a, count); }
  Id look_up(Id a, const LookUpTable& table);
  // Not to be mixed with input() of the same number.
  Id byte_input(int number);
  Id scale(Id a, Id b) { return append({VecOp::scale, {a, b, -1, -1}, 0}); }
  Id select(uint32_t predicate, Id a, Id b, Id yes, Id no);

  Id abs(Id a) { return bit_and(a, constant_bits(0x7fffffff)); }
  Id neg(Id a) { return bit_xor(a, constant_bits(0x80000000)); }
  // NaN when either is NaN.
  Id min_or_nan(Id a, Id b);
  Id max_or_nan(Id a, Id b);
  // Between low and high; NaN stays.
  Id clamp(Id a, float low, float high) { return max(constant(low), min(constant(high), a)); }
  Id horner(Id x, std::initializer_list<float> highest_first);

  bool is_constant(Id a) const { return program_.is_constant(a); }
  float value(Id a) const { return std::bit_cast<float>(program_.bits(a)); }
  const VecInstruction& at(Id a) const { return program_.code[static_cast<size_t>(a)]; }
  // The program that ends with `result`, without what it does not need.
  VectorProgram finish(Id result) const;

 private:
  Id append(VecInstruction instruction);
  Id unary(VecOp op, Id a, uint32_t immediate);
  Id binary(VecOp op, Id a, Id b);
  Id multiply_add(VecOp op, Id a, Id b, Id c);

  Isa isa_;
  VectorProgram program_;
  std::map<std::tuple<VecOp, std::array<int, 4>, uint32_t>, Id> known_;
};

}  // namespace lathe
