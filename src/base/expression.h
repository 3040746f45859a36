#pragma once
// A pointwise expression over float32 scalars: plain data, shared by the graph (which fuses), the generated loops
// (which run it over tensors) and the epilogues of matrix products and convolutions (which run it on accumulators).
#include <cstdint>
#include <string>
#include <vector>

#include "lathe/dtype.h"

namespace lathe {

enum class ExprOp : uint8_t {
  input,     // input number `a`, converted to float32 from its element type
  constant,  // `value`
  // one operand
  neg,
  abs,
  sqrt,
  reciprocal,
  exp,
  log,
  erf,
  tanh,
  sigmoid,
  floor,
  ceil,
  round_even,
  sin,
  cos,
  sign,
  logical_not,
  is_nan,
  // two operands; comparisons and logic give 0 or 1
  add,
  sub,
  mul,
  div,
  min,
  max,
  pow,
  equal,
  less,
  less_equal,
  logical_and,
  logical_or,
  // three operands: a != 0 ? b : c
  select,
};

int operand_count(ExprOp op);  // how many of a, b, c; 0 for input and constant

struct ExprNode {
  ExprOp op = ExprOp::constant;
  int a = -1, b = -1, c = -1;  // indices of earlier nodes; for `input`, a is the input's number
  float value = 0;
  bool operator==(const ExprNode&) const = default;
};

// Nodes in evaluation order; the last one is the result.
// min and max return NaN when either operand is NaN, as ONNX's do. A result stored as an integer is clamped to the
// type's range and must be integral already (use round_even or floor); one stored as bool is (x != 0).
struct Expression {
  std::vector<ExprNode> nodes;
  std::vector<DType> inputs;  // element type in memory: f32, f16, bf16, u8, i8, u16, i16, i32, i64 or boolean
  DType output = DType::f32;  // f32, f16, u8, i8, u16, i16, i32 or boolean

  bool operator==(const Expression&) const = default;
  int add(ExprNode node) {
    nodes.push_back(node);
    return static_cast<int>(nodes.size()) - 1;
  }
};

// What an integer type holds, in float32 numbers that convert back without overflow. Throws Error for other types.
struct FloatRange {
  float low, high;
};
FloatRange stored_range(DType dtype);

std::string to_string(const Expression& expression);                // "max(x0 + x1, 0)"; also the key of its kernels
float evaluate(const Expression& expression, const float* inputs);  // the plain reference; `inputs` already float32
// Puts `inner` in place of input `slot` of `outer`; inner's inputs are appended behind outer's others.
Expression substitute(const Expression& outer, int slot, const Expression& inner);
// Puts `inner` between input `slot` and `outer`: inner's input 0 is then input `slot`, its others are appended behind
// outer's.
Expression extend_input(const Expression& outer, int slot, const Expression& inner);
// Arithmetic operations for one element, for the profile's FLOP count (a transcendental counts 10).
double flop_per_element(const Expression& expression);

}  // namespace lathe
