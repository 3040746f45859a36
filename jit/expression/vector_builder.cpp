#include "jit/expression/vector_builder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace lathe {
namespace {

bool is_commutative(VecOp op) {
  return op == VecOp::add || op == VecOp::mul || op == VecOp::bit_and || op == VecOp::bit_or || op == VecOp::bit_xor ||
         op == VecOp::int_add;
}

uint32_t fold_binary(VecOp op, uint32_t a_bits, uint32_t b_bits) {
  const auto a = std::bit_cast<float>(a_bits), b = std::bit_cast<float>(b_bits);
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  switch (op) {
    case VecOp::add:
      return bits(a + b);
    case VecOp::sub:
      return bits(a - b);
    case VecOp::mul:
      return bits(a * b);
    case VecOp::div:
      return bits(a / b);
    case VecOp::min:
      return a < b ? a_bits : b_bits;
    case VecOp::max:
      return a > b ? a_bits : b_bits;
    case VecOp::bit_and:
      return a_bits & b_bits;
    case VecOp::bit_or:
      return a_bits | b_bits;
    case VecOp::bit_xor:
      return a_bits ^ b_bits;
    case VecOp::int_add:
      return a_bits + b_bits;
    default:
      return a_bits - b_bits;  // int_sub
  }
}

int32_t to_int32(float x) {
  const float rounded = std::nearbyint(x);
  if (!(rounded >= -2147483648.0F && rounded < 2147483648.0F)) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(rounded);
}

float rounded(float x, uint32_t mode) {
  switch (mode) {
    case rounding::down:
      return std::floor(x);
    case rounding::up:
      return std::ceil(x);
    case rounding::to_zero:
      return std::trunc(x);
    default:
      return std::nearbyint(x);
  }
}

uint32_t fold_unary(VecOp op, uint32_t bits, uint32_t immediate) {
  const auto x = std::bit_cast<float>(bits);
  switch (op) {
    case VecOp::sqrt:
      return std::bit_cast<uint32_t>(std::sqrt(x));
    case VecOp::round:
      return std::bit_cast<uint32_t>(rounded(x, immediate));
    case VecOp::to_int:
      return static_cast<uint32_t>(to_int32(x));
    case VecOp::from_int:
      return std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(bits)));
    case VecOp::shift_left:
      return bits << immediate;
    default:
      return static_cast<uint32_t>(static_cast<int32_t>(bits) >> immediate);  // shift_right
  }
}

bool compare(uint32_t p, float a, float b) {
  switch (p) {
    case predicate::equal:
      return a == b;
    case predicate::less:
      return a < b;
    case predicate::less_equal:
      return a <= b;
    case predicate::greater:
      return a > b;
    case predicate::greater_equal:
      return a >= b;
    case predicate::unordered:
      return std::isnan(a) || std::isnan(b);
    default:
      return !compare(predicate::inverse(p), a, b);
  }
}

// 1 / x when that is exact and neither end is denormal.
std::optional<float> exact_reciprocal(float x) {
  int exponent = 0;
  if (std::fabs(std::frexp(x, &exponent)) != 0.5F || exponent < -120 || exponent > 120) return std::nullopt;
  return 1.0F / x;
}

}  // namespace

uint32_t predicate::with_operands_swapped(uint32_t p) {
  switch (p) {
    case less:
      return greater;
    case greater:
      return less;
    case less_equal:
      return greater_equal;
    case greater_equal:
      return less_equal;
    case inverse(less):
      return inverse(greater);
    case inverse(greater):
      return inverse(less);
    case inverse(less_equal):
      return inverse(greater_equal);
    case inverse(greater_equal):
      return inverse(less_equal);
    default:
      return p;
  }
}

int operand_count(VecOp op) {
  switch (op) {
    case VecOp::input:
    case VecOp::constant:
      return 0;
    case VecOp::sqrt:
    case VecOp::round:
    case VecOp::to_int:
    case VecOp::from_int:
    case VecOp::shift_left:
    case VecOp::shift_right:
    case VecOp::look_up:
      return 1;
    case VecOp::fma:
    case VecOp::fnma:
    case VecOp::fms:
      return 3;
    case VecOp::select:
      return 4;
    default:
      return 2;
  }
}

VectorBuilder::Id VectorBuilder::append(VecInstruction instruction) {
  for (size_t i = static_cast<size_t>(operand_count(instruction.op)); i < 4; ++i) instruction.operands[i] = -1;
  const auto [found, is_new] = known_.try_emplace({instruction.op, instruction.operands, instruction.immediate},
                                                  static_cast<Id>(program_.code.size()));
  if (is_new) program_.code.push_back(instruction);
  return found->second;
}

VectorBuilder::Id VectorBuilder::unary(VecOp op, Id a, uint32_t immediate) {
  if (is_constant(a)) return constant_bits(fold_unary(op, program_.bits(a), immediate));
  return append({op, {a, -1, -1, -1}, immediate});
}

VectorBuilder::Id VectorBuilder::binary(VecOp op, Id a, Id b) {
  if (is_constant(a) && is_constant(b)) return constant_bits(fold_binary(op, program_.bits(a), program_.bits(b)));
  if (is_commutative(op) && is_constant(a)) std::swap(a, b);
  if (op == VecOp::mul && is_constant(b) && value(b) == 1) return a;
  return append({op, {a, b, -1, -1}, 0});
}

VectorBuilder::Id VectorBuilder::div(Id a, Id b) {
  if (is_constant(b) && !is_constant(a))
    if (const auto reciprocal = exact_reciprocal(value(b))) return mul(a, constant(*reciprocal));
  return binary(VecOp::div, a, b);
}

VectorBuilder::Id VectorBuilder::look_up(Id a, const LookUpTable& table) {
  std::vector<LookUpTable>& tables = program_.tables;
  const auto number = static_cast<size_t>(std::find(tables.begin(), tables.end(), table) - tables.begin());
  if (number == tables.size()) tables.push_back(table);
  return append({VecOp::look_up, {a, -1, -1, -1}, static_cast<uint32_t>(number)});
}

VectorBuilder::Id VectorBuilder::byte_input(int number) {
  program_.byte_inputs.push_back(number);
  return input(number);
}

VectorBuilder::Id VectorBuilder::multiply_add(VecOp op, Id a, Id b, Id c) {
  if (is_constant(a)) std::swap(a, b);
  if (is_constant(a)) {  // both
    const Id product = mul(a, b);
    if (op == VecOp::fma) return add(product, c);
    return op == VecOp::fnma ? sub(c, product) : sub(product, c);
  }
  return append({op, {a, b, c, -1}, 0});
}

VectorBuilder::Id VectorBuilder::select(uint32_t p, Id a, Id b, Id yes, Id no) {
  if (yes == no) return yes;
  if (is_constant(a) && is_constant(b)) return compare(p, value(a), value(b)) ? yes : no;
  if (is_constant(a)) {
    std::swap(a, b);
    p = predicate::with_operands_swapped(p);
  }
  const bool prefers_inverse = is_constant(no) && (!is_constant(yes) || program_.bits(yes) == 0);
  if (prefers_inverse) {
    std::swap(yes, no);
    p = predicate::inverse(p);
  }
  return append({VecOp::select, {a, b, yes, no}, p});
}

VectorBuilder::Id VectorBuilder::min_or_nan(Id a, Id b) {
  if (is_constant(b)) std::swap(a, b);
  const Id smaller = min(a, b);  // NaN in b comes through
  if (is_constant(a) && !std::isnan(value(a))) return smaller;
  return select(predicate::unordered, a, a, a, smaller);
}

VectorBuilder::Id VectorBuilder::max_or_nan(Id a, Id b) {
  if (is_constant(b)) std::swap(a, b);
  const Id larger = max(a, b);
  if (is_constant(a) && !std::isnan(value(a))) return larger;
  return select(predicate::unordered, a, a, a, larger);
}

VectorBuilder::Id VectorBuilder::horner(Id x, std::initializer_list<float> highest_first) {
  Id sum = -1;
  for (const float coefficient : highest_first)
    sum = sum < 0 ? constant(coefficient) : fma(x, sum, constant(coefficient));
  return sum;
}

VectorProgram VectorBuilder::finish(Id result) const {
  std::vector<bool> is_needed(program_.code.size(), false);
  is_needed[static_cast<size_t>(result)] = true;
  for (size_t i = program_.code.size(); i-- > 0;)
    if (is_needed[i])
      for (int k = 0; k < operand_count(program_.code[i].op); ++k)
        is_needed[static_cast<size_t>(program_.code[i].operands[static_cast<size_t>(k)])] = true;
  VectorProgram program;
  program.tables = program_.tables;
  program.byte_inputs = program_.byte_inputs;
  std::vector<int> moved(program_.code.size(), -1);
  const auto keep = [&](size_t i) {
    VecInstruction instruction = program_.code[i];
    for (int k = 0; k < operand_count(instruction.op); ++k)
      instruction.operands[static_cast<size_t>(k)] =
          moved[static_cast<size_t>(instruction.operands[static_cast<size_t>(k)])];
    moved[i] = static_cast<int>(program.code.size());
    program.code.push_back(instruction);
  };
  for (size_t i = 0; i < program_.code.size(); ++i)
    if (is_needed[i] && i != static_cast<size_t>(result)) keep(i);
  keep(static_cast<size_t>(result));  // nothing needed comes behind it in SSA order, so that moving it last is safe
  return program;
}

}  // namespace lathe
