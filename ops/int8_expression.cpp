// What follows a sum of integer products, as one expression.
#include <cmath>

#include "ops/int8_lower.h"

namespace lathe {
namespace {

bool is_constant(const Expression& e, int node) {
  return node >= 0 && e.nodes[static_cast<size_t>(node)].op == ExprOp::constant;
}
float constant_at(const Expression& e, int node) { return e.nodes[static_cast<size_t>(node)].value; }

// Division by it may become a multiplication.
bool has_reciprocal(float value) { return std::isnormal(value) && std::isnormal(1 / value); }

struct FirstFactor {
  int node = -1;  // of the multiplication or division
  double factor = 1;
};

// The one reader of input 0, if it multiplies by a constant.
FirstFactor first_factor(const Expression& e) {
  int sum = -1, reader = -1, readers = 0;
  for (size_t i = 0; i < e.nodes.size(); ++i) {
    const ExprNode& node = e.nodes[i];
    if (node.op == ExprOp::input) {
      if (node.a != 0) continue;
      if (sum >= 0) return {};
      sum = static_cast<int>(i);
      continue;
    }
    for (const int operand : {node.a, node.b, node.c}) {
      if (operand < 0 || operand != sum) continue;
      ++readers;
      reader = static_cast<int>(i);
    }
  }
  if (readers != 1) return {};
  const ExprNode& node = e.nodes[static_cast<size_t>(reader)];
  const int other = node.a == sum ? node.b : node.a;
  if (!is_constant(e, other)) return {};
  const float value = constant_at(e, other);
  if (node.op == ExprOp::mul && std::isnormal(value)) return {reader, value};
  if (node.op == ExprOp::div && node.a == sum && has_reciprocal(value)) return {reader, 1.0 / value};
  return {};
}

}  // namespace

Expression scaled_expression(const std::optional<Expression>& outer, std::vector<float>& scale) {
  const FirstFactor first = outer ? first_factor(*outer) : FirstFactor{};
  for (float& each : scale) each = static_cast<float>(each * first.factor);
  Expression result;
  result.inputs = {DType::f32};
  const bool is_scalar = scale.size() == 1;
  if (!is_scalar) result.inputs.push_back(DType::f32);
  const int sum = result.add({.op = ExprOp::input, .a = 0});
  const int factor =
      is_scalar ? result.add({.op = ExprOp::constant, .value = scale[0]}) : result.add({.op = ExprOp::input, .a = 1});
  const int product = result.add({.op = ExprOp::mul, .a = sum, .b = factor});
  if (!outer) return result;
  std::vector<int> moved;
  for (size_t i = 0; i < outer->nodes.size(); ++i) {
    ExprNode node = outer->nodes[i];
    if ((node.op == ExprOp::input && node.a == 0) || static_cast<int>(i) == first.node) {
      moved.push_back(product);
      continue;
    }
    if (node.op == ExprOp::input) {
      node.a += is_scalar ? 0 : 1;
    } else {
      if (node.op == ExprOp::div && is_constant(*outer, node.b) && has_reciprocal(constant_at(*outer, node.b))) {
        const int reciprocal = result.add({.op = ExprOp::constant, .value = 1 / constant_at(*outer, node.b)});
        moved.push_back(result.add({.op = ExprOp::mul, .a = moved[static_cast<size_t>(node.a)], .b = reciprocal}));
        continue;
      }
      for (int* operand : {&node.a, &node.b, &node.c}) {
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
      }
    }
    moved.push_back(result.add(node));
  }
  // The last node is the result.
  if (moved.back() != static_cast<int>(result.nodes.size()) - 1) {
    const int zero = result.add({.op = ExprOp::constant, .value = 0});
    result.add({.op = ExprOp::add, .a = moved.back(), .b = zero});
  }
  result.inputs.insert(result.inputs.end(), outer->inputs.begin() + 1, outer->inputs.end());
  result.output = outer->output;
  return result;
}

}  // namespace lathe
