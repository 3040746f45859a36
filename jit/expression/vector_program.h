#pragma once
// An Expression as a short list of vector operations in SSA form: what both back ends translate, one instruction or two
// an operation. The transcendental functions are spelt out here, once; jit/expression/vector_math.h has their errors.
#include <array>
#include <cstdint>
#include <vector>

#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

// Every value is a vector of 32-bit lanes: float32 unless the operation says integer.
enum class VecOp : uint8_t {
  input,     // immediate: the input's number
  constant,  // immediate: the bits
  add,
  sub,
  mul,
  div,
  min,
  max,   // as the instructions: the second operand when either is NaN or both are zero
  fma,   // a * b + c
  fnma,  // c - a * b
  fms,   // a * b - c
  sqrt,
  round,  // immediate: the rounding mode of vroundps
  bit_and,
  bit_or,
  bit_xor,
  to_int,
  from_int,  // float32 <-> int32, to nearest even
  int_add,
  int_sub,
  shift_left,
  shift_right,  // of int32, arithmetic; immediate: the count
  scale,        // a * 2^floor(b), any range (AVX-512 only)
  look_up,      // what a table has for the low 4 bits of a; immediate: the table's number (AVX-512 only)
  select,       // (a <predicate> b) ? c : d; immediate: the predicate of vcmpps
};

// Predicates of vcmpps, quiet. Those with `not_` are true when unordered.
namespace predicate {
inline constexpr uint32_t equal = 0x00, unordered = 0x03, not_equal = 0x04, ordered = 0x07, less = 0x11,
                          less_equal = 0x12, greater = 0x1e, greater_equal = 0x1d;
inline constexpr uint32_t inverse(uint32_t p) { return p ^ 4; }
uint32_t with_operands_swapped(uint32_t p);
}  // namespace predicate

namespace rounding {
inline constexpr uint32_t nearest = 0x08, down = 0x09, up = 0x0a, to_zero = 0x0b;  // 8: no precision exception
}

struct VecInstruction {
  VecOp op = VecOp::constant;
  std::array<int, 4> operands = {-1, -1, -1, -1};  // indices of earlier instructions
  uint32_t immediate = 0;
  bool operator==(const VecInstruction&) const = default;
};

int operand_count(VecOp op);

using LookUpTable = std::array<float, 16>;

// What back ends may rely on: constants come up as operands only, never need to be live in a register, and
//  - commutative operations have a constant, if any, second; fma's first operand is never constant;
//  - a select compares no constant first, and has a constant fourth operand only together with a constant third.
struct VectorProgram {
  std::vector<VecInstruction> code;  // the last one is the result (it may be an input or a constant)
  std::vector<LookUpTable> tables;
  std::vector<int> byte_inputs;  // that are not converted: a byte in each 32-bit lane

  bool is_constant(int i) const { return code[static_cast<size_t>(i)].op == VecOp::constant; }
  uint32_t bits(int i) const { return code[static_cast<size_t>(i)].immediate; }
};

// Whole numbers of a range of 256, times a constant: multiplied, or (AVX-512 only) added up from tables of their upper
// and their lower 4 bits, off by one rounding more. That takes more instructions, but leaves the multipliers to others.
// Nothing is NaN then.
enum class BytesTimesConstants : uint8_t {
  multiplied,
  inputs_looked_up,  // only bytes that come as inputs
  looked_up,         // what is rounded and clamped on the way, too
};

// The result is float32 lanes, clamped to the range of an integer `expression.output` and 0 or 1 for boolean.
// Throws JitError when the expression is malformed.
VectorProgram lower_expression(const Expression& expression, Isa isa,
                               BytesTimesConstants products = BytesTimesConstants::multiplied);

}  // namespace lathe
