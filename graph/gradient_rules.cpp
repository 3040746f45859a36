#include "graph/gradient_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "graph/text.h"
#include "lathe/error.h"
#include "src/base/half.h"

namespace lathe {

void GradientStep::unsupported(const std::string& what) const {
  throw Error(ErrorCode::unsupported, describe(context.node) + ": the gradient of " + describe(node) + ": " + what);
}

ValueId GradientStep::scalar(double value) const {
  const Tensor number = Tensor::scalar(static_cast<float>(value));
  const DType dtype = context.type(dy).dtype;
  if (dtype == DType::f64) return context.constant(Tensor::scalar(value));
  if (dtype == DType::f32) return context.constant(number);
  return context.add("CastLike", {context.constant(number), dy});
}

ValueId GradientStep::shaped_like(ValueId x, ValueId like) const {
  return context.add("Reshape", {x, context.add("Shape", {like})}, {{"allowzero", int64_t{1}}});
}

void GradientStep::give(size_t input, ValueId gradient) {
  const ValueId x = inputs[input];
  const TensorType own = context.type(x), wide = context.type(gradient);  // copies: the graph grows
  if (!own.has_rank || !wide.has_rank) unsupported("ranks are not known");
  if (own.is_static() && wide.is_static() && own.dims == wide.dims) {
    gradients[input] = gradient;
    return;
  }
  // The axes of extent 1, and those that the input lacks; where it was 1 before too, the sum changes nothing.
  ValueId extents = context.add("Shape", {x});
  const auto missing = static_cast<size_t>(std::max(0, wide.rank() - own.rank()));
  if (missing > 0) {
    const std::vector<int64_t> ones(missing, 1);
    const Dims count{static_cast<int64_t>(missing)};
    const ValueId before = context.constant(Tensor::from<int64_t>(count, std::span<const int64_t>(ones)));
    extents = context.add("Concat", {before, extents}, {{"axis", int64_t{0}}});
  }
  const ValueId is_one = context.add("Equal", {extents, context.longs({1})});
  const ValueId axes = context.add("Reshape", {context.add("NonZero", {is_one}), context.longs({-1})});
  const ValueId sum = context.add("ReduceSum", {gradient, axes}, {{"noop_with_empty_axes", int64_t{1}}});
  gradients[input] = shaped_like(sum, x);
}

namespace {

void pass_on(GradientStep& step) {
  for (size_t i = 0; i < step.inputs.size(); ++i) step.give(i, step.dy);
}

void pass_first(GradientStep& step) { step.give(0, step.dy); }

void subtract(GradientStep& step) {
  step.give(0, step.dy);
  step.give(1, step.unary("Neg", step.dy));
}

void multiply(GradientStep& step) {
  step.give(0, step.binary("Mul", step.dy, step.inputs[1]));
  step.give(1, step.binary("Mul", step.dy, step.inputs[0]));
}

void divide(GradientStep& step) {
  const ValueId by = step.binary("Div", step.dy, step.inputs[1]);
  step.give(0, by);
  step.give(1, step.unary("Neg", step.binary("Mul", by, step.y)));
}

// Of functions of one variable: dy times f'(x), which may be told by x or by y.
template <ValueId (*Derivative)(GradientStep&)>
void chain(GradientStep& step) {
  step.give(0, step.binary("Mul", step.dy, Derivative(step)));
}

ValueId of_neg(GradientStep& step) { return step.scalar(-1); }
ValueId of_exp(GradientStep& step) { return step.y; }
ValueId of_log(GradientStep& step) { return step.unary("Reciprocal", step.inputs[0]); }
ValueId of_sqrt(GradientStep& step) { return step.binary("Div", step.scalar(0.5), step.y); }
ValueId of_reciprocal(GradientStep& step) { return step.unary("Neg", step.binary("Mul", step.y, step.y)); }
ValueId of_abs(GradientStep& step) { return step.unary("Sign", step.inputs[0]); }
ValueId of_sin(GradientStep& step) { return step.unary("Cos", step.inputs[0]); }
ValueId of_cos(GradientStep& step) { return step.unary("Neg", step.unary("Sin", step.inputs[0])); }
ValueId of_softplus(GradientStep& step) { return step.unary("Sigmoid", step.inputs[0]); }
ValueId of_tanh(GradientStep& step) { return step.binary("Sub", step.scalar(1), step.binary("Mul", step.y, step.y)); }
ValueId of_sigmoid(GradientStep& step) {
  return step.binary("Mul", step.y, step.binary("Sub", step.scalar(1), step.y));
}
ValueId of_erf(GradientStep& step) {
  const ValueId square = step.binary("Mul", step.inputs[0], step.inputs[0]);
  return step.binary("Mul", step.scalar(2 * std::numbers::inv_sqrtpi), step.unary("Exp", step.unary("Neg", square)));
}

void relu(GradientStep& step) {
  const ValueId zero = step.scalar(0);
  step.give(0, step.context.add("Where", {step.binary("Greater", step.inputs[0], zero), step.dy, zero}));
}

void power(GradientStep& step) {
  const ValueId x = step.inputs[0];
  const ValueId exponent = step.context.add("CastLike", {step.inputs[1], x});
  const ValueId lower = step.binary("Pow", x, step.binary("Sub", exponent, step.scalar(1)));
  step.give(0, step.binary("Mul", step.dy, step.binary("Mul", exponent, lower)));
  const TensorType& type = step.context.type(step.inputs[1]);
  if (type.dtype == step.context.type(x).dtype && !step.context.constant_of(step.inputs[1]).defined())
    step.give(1, step.binary("Mul", step.dy, step.binary("Mul", step.y, step.unary("Log", x))));
}

void where(GradientStep& step) {
  const ValueId zero = step.scalar(0);
  step.give(1, step.context.add("Where", {step.inputs[0], step.dy, zero}));
  step.give(2, step.context.add("Where", {step.inputs[0], zero, step.dy}));
}

void cast(GradientStep& step) { step.gradients[0] = step.context.add("CastLike", {step.dy, step.inputs[0]}); }

void reshape(GradientStep& step) { step.gradients[0] = step.shaped_like(step.dy, step.inputs[0]); }

ValueId transposed(const GradientStep& step, ValueId x) {
  std::vector<int64_t> perm(static_cast<size_t>(step.context.type(x).rank()));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return step.context.add("Transpose", {x}, {{"perm", perm}});
}

void transpose(GradientStep& step) {
  const std::vector<int64_t> perm = step.node.attributes.get_ints("perm");
  if (perm.empty()) {  // all axes reversed, which is its own inverse
    step.give(0, step.unary("Transpose", step.dy));
    return;
  }
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  step.give(0, step.context.add("Transpose", {step.dy}, {{"perm", inverse}}));
}

void matmul(GradientStep& step) {
  for (const ValueId operand : step.inputs) {
    const TensorType& type = step.context.type(operand);
    if (!type.has_rank || type.rank() < 2) step.unsupported("an operand is no matrix");
  }
  step.give(0, step.binary("MatMul", step.dy, transposed(step, step.inputs[1])));
  step.give(1, step.binary("MatMul", transposed(step, step.inputs[0]), step.dy));
}

// y = alpha * A' B' + beta * C
void gemm(GradientStep& step) {
  const Attributes& attributes = step.node.attributes;
  const bool turns_a = attributes.get_int("transA", 0) != 0, turns_b = attributes.get_int("transB", 0) != 0;
  const auto scaled = [&](ValueId x, const char* factor) {
    const auto by = static_cast<double>(attributes.get_float(factor, 1));
    return by == 1 ? x : step.binary("Mul", x, step.scalar(by));
  };
  const auto product = [&](ValueId a, bool turns_first, ValueId b, bool turns_second) {
    return step.binary("MatMul", turns_first ? transposed(step, a) : a, turns_second ? transposed(step, b) : b);
  };
  const ValueId dy = scaled(step.dy, "alpha"), a = step.inputs[0], b = step.inputs[1];
  step.give(0, turns_a ? product(b, turns_b, dy, true) : product(dy, false, b, !turns_b));
  step.give(1, turns_b ? product(dy, true, a, turns_a) : product(a, !turns_a, dy, false));
  if (step.inputs.size() > 2 && step.inputs[2] != ValueId::none) step.give(2, scaled(step.dy, "beta"));
}

// dy, with the axes that a reduction took away back, one element each, repeated to x's extents.
ValueId spread(GradientStep& step) {
  ValueId axes = step.inputs.size() > 1 ? step.inputs[1] : ValueId::none;
  const std::vector<int64_t> given = step.node.attributes.get_ints("axes");
  if (axes == ValueId::none && !given.empty()) {
    const Dims count{static_cast<int64_t>(given.size())};
    axes = step.context.constant(Tensor::from<int64_t>(count, std::span<const int64_t>(given)));
  }
  const ValueId kept = step.context.add(
      "ReduceSum", {step.inputs[0], axes},
      {{"noop_with_empty_axes", step.node.attributes.get_int("noop_with_empty_axes", 0)}, {"keepdims", int64_t{1}}});
  return step.context.add("Expand", {step.shaped_like(step.dy, kept), step.unary("Shape", step.inputs[0])});
}

void reduce_sum(GradientStep& step) { step.gradients[0] = spread(step); }

void reduce_mean(GradientStep& step) {
  const auto count = [&](ValueId x) { return step.context.add("CastLike", {step.unary("Size", x), step.dy}); };
  const ValueId share = step.binary("Div", count(step.y), count(step.inputs[0]));
  step.gradients[0] = step.binary("Mul", spread(step), share);
}

void softmax(GradientStep& step) {
  constexpr int kOneAxisSince = 13;
  if (step.node.version < kOneAxisSince) step.unsupported("opset below 13");
  const int64_t axis = step.node.attributes.get_int("axis", -1);
  const ValueId product = step.binary("Mul", step.dy, step.y);
  const ValueId sum = step.context.add("ReduceSum", {product, step.context.longs({axis})});
  step.give(0, step.binary("Mul", step.y, step.binary("Sub", step.dy, sum)));
}

struct NamedRule {
  std::string_view op;
  GradientRule* rule;
};

constexpr std::array kRules{NamedRule{"Abs", chain<of_abs>},
                            NamedRule{"Add", pass_on},
                            NamedRule{"Cast", cast},
                            NamedRule{"Cos", chain<of_cos>},
                            NamedRule{"Div", divide},
                            NamedRule{"Erf", chain<of_erf>},
                            NamedRule{"Exp", chain<of_exp>},
                            NamedRule{"Expand", pass_first},
                            NamedRule{"Flatten", reshape},
                            NamedRule{"Gemm", gemm},
                            NamedRule{"Identity", pass_on},
                            NamedRule{"Log", chain<of_log>},
                            NamedRule{"MatMul", matmul},
                            NamedRule{"Mul", multiply},
                            NamedRule{"Neg", chain<of_neg>},
                            NamedRule{"Pow", power},
                            NamedRule{"Reciprocal", chain<of_reciprocal>},
                            NamedRule{"ReduceMean", reduce_mean},
                            NamedRule{"ReduceSum", reduce_sum},
                            NamedRule{"Relu", relu},
                            NamedRule{"Reshape", reshape},
                            NamedRule{"Sigmoid", chain<of_sigmoid>},
                            NamedRule{"Sin", chain<of_sin>},
                            NamedRule{"Softmax", softmax},
                            NamedRule{"Softplus", chain<of_softplus>},
                            NamedRule{"Sqrt", chain<of_sqrt>},
                            NamedRule{"Squeeze", reshape},
                            NamedRule{"Sub", subtract},
                            NamedRule{"Sum", pass_on},
                            NamedRule{"Tanh", chain<of_tanh>},
                            NamedRule{"Transpose", transpose},
                            NamedRule{"Unsqueeze", reshape},
                            NamedRule{"Where", where}};

}  // namespace

GradientRule* gradient_rule(std::string_view op) {
  const auto* const found =
      std::find_if(kRules.begin(), kRules.end(), [&](const NamedRule& each) { return each.op == op; });
  return found == kRules.end() ? nullptr : found->rule;
}

}  // namespace lathe
