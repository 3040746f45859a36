// Activation functions, of ai.onnx and com.microsoft, and Clip.
#include <cmath>
#include <limits>

#include "graph/expand.h"
#include "ops/pointwise/activation_functors.h"
#include "ops/pointwise/double_math.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

using Kind = AttributeSpec::Kind;
using Writer = ExpressionWriter;

// --- expressions: each from the value `x` already written ------------------------------------------------------------

int relu(Writer& w, const Node&, int x) { return w.op(ExprOp::max, x, w.constant(0)); }

int leaky_relu(Writer& w, const Node& node, int x) {
  const int scaled = w.mul(x, w.constant(functors::LeakyRelu(node).alpha));
  return w.select(w.op(ExprOp::less, x, w.constant(0)), scaled, x);
}

int thresholded_relu(Writer& w, const Node& node, int x) {
  const int threshold = w.constant(functors::ThresholdedRelu(node).alpha);
  return w.select(w.op(ExprOp::less, threshold, x), x, w.constant(0));
}

// exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2): accurate near 0, where the difference would cancel.
int exp_minus_one(Writer& w, int x) {
  const int t = w.op(ExprOp::tanh, w.mul(x, w.constant(0.5F)));
  return w.op(ExprOp::div, w.add(t, t), w.sub(w.constant(1), t));
}

int elu_like(Writer& w, int x, float alpha, float gamma, float inner) {
  const int argument = inner == 1 ? x : w.op(ExprOp::div, x, w.constant(inner));
  const int negative = w.mul(exp_minus_one(w, argument), w.constant(alpha * gamma));
  const int positive = gamma == 1 ? x : w.mul(x, w.constant(gamma));
  return w.select(w.op(ExprOp::less, x, w.constant(0)), negative, positive);
}
int elu(Writer& w, const Node& node, int x) { return elu_like(w, x, functors::Elu(node).alpha, 1, 1); }
int selu(Writer& w, const Node& node, int x) {
  const functors::Selu f(node);
  return elu_like(w, x, f.alpha, f.gamma, 1);
}
int celu(Writer& w, const Node& node, int x) {
  const float alpha = functors::Celu(node).alpha;
  return elu_like(w, x, alpha, 1, alpha);
}

int between(Writer& w, int x, float low, float high) {
  return w.op(ExprOp::min, w.op(ExprOp::max, x, w.constant(low)), w.constant(high));
}
int hard_sigmoid(Writer& w, const Node& node, int x) {
  const functors::HardSigmoid f(node);
  return between(w, w.add(w.mul(x, w.constant(f.alpha)), w.constant(f.beta)), 0, 1);
}
int hard_swish(Writer& w, const Node&, int x) {
  return w.mul(x, between(w, w.add(w.mul(x, w.constant(1.0F / 6)), w.constant(0.5F)), 0, 1));
}

// max(x, 0) + log(1 + exp(-|x|)): nothing overflows.
int softplus(Writer& w, const Node&, int x) {
  const int small = w.op(ExprOp::exp, w.op(ExprOp::neg, w.op(ExprOp::abs, x)));
  const int log = w.op(ExprOp::log, w.add(small, w.constant(1)));
  return w.add(w.op(ExprOp::max, x, w.constant(0)), log);
}

int softsign(Writer& w, const Node&, int x) { return w.op(ExprOp::div, x, w.add(w.op(ExprOp::abs, x), w.constant(1))); }

int sigmoid(Writer& w, const Node&, int x) { return w.op(ExprOp::sigmoid, x); }
int tanh(Writer& w, const Node&, int x) { return w.op(ExprOp::tanh, x); }

int swish_by(Writer& w, int x, float alpha) {
  const int argument = alpha == 1 ? x : w.mul(x, w.constant(alpha));
  return w.mul(x, w.op(ExprOp::sigmoid, argument));
}
int swish(Writer& w, const Node& node, int x) { return swish_by(w, x, functors::Swish(node).alpha); }
int quick_gelu(Writer& w, const Node& node, int x) { return swish_by(w, x, functors::QuickGelu(node).alpha); }

int gelu_erf(Writer& w, const Node&, int x) {
  const int erf = w.op(ExprOp::erf, w.mul(x, w.constant(0.707106781F)));
  return w.mul(w.mul(x, w.constant(0.5F)), w.add(erf, w.constant(1)));
}
int gelu_tanh(Writer& w, const Node&, int x) {
  const int square = w.mul(x, x);
  const int inner = w.add(w.mul(square, w.constant(0.0356774081F)), w.constant(0.797884561F));  // sqrt(2 / pi)
  const int t = w.op(ExprOp::tanh, w.mul(inner, x));
  return w.mul(w.mul(x, w.constant(0.5F)), w.add(t, w.constant(1)));
}
int gelu(Writer& w, const Node& node, int x) {
  return functors::Gelu(node).is_tanh ? gelu_tanh(w, node, x) : gelu_erf(w, node, x);
}

// x tanh(log(1 + e)) with e = exp(x), which is x n / (n + 2) with n = e (e + 2); 1 to float32 from 20 on.
int mish(Writer& w, const Node&, int x) {
  const int e = w.op(ExprOp::exp, w.op(ExprOp::min, x, w.constant(20)));
  const int n = w.mul(e, w.add(e, w.constant(2)));
  return w.mul(x, w.op(ExprOp::div, n, w.add(n, w.constant(2))));
}

int shrink(Writer& w, const Node& node, int x) {
  const functors::Shrink f(node);
  const int below = w.op(ExprOp::less, x, w.constant(-f.lambd));
  const int above = w.op(ExprOp::less, w.constant(f.lambd), x);
  const int upper = w.select(above, w.sub(x, w.constant(f.bias)), w.constant(0));
  return w.select(below, w.add(x, w.constant(f.bias)), upper);
}

using WriteFn = int(Writer&, const Node&, int x);

template <WriteFn* Write>
std::optional<Expression> express(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs.first(1))) return std::nullopt;
  Writer w(inputs);
  Write(w, node, w.x(0));
  return w.finish();
}

// Of the sum of input 0 and, where it is there, input 1.
template <WriteFn* Write>
std::optional<Expression> express_biased(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  const bool has_bias = inputs.size() > 1 && inputs[1].dtype != DType::undefined;
  if (!all_float32(inputs.first(has_bias ? 2 : 1))) return std::nullopt;
  Writer w(inputs);
  const int x = w.x(0);
  Write(w, node, has_bias ? w.add(x, w.x(1)) : x);
  return w.finish();
}

template <class F>
void reference_biased(ReferenceContext& context) {
  if (!context.has_input(1)) return reference_unary<F, kReals>(context);
  reference_binary<functors::OfSum<F>, kReals>(context);
}

void infer_biased(InferContext& context) {
  if (!context.has_input(1)) return infer_same(context);
  infer_broadcast(context);
}

// --- PRelu -----------------------------------------------------------------------------------------------------------

// An old slope gets the axes that NumPy's rule asks for.
bool expand_prelu(ExpandContext& context) {
  const TensorType x = context.input_type(0), slope = context.input_type(1);
  if (!x.has_rank || !slope.has_rank) return false;
  Dims dims = aligned_dims(context.node, 1, Dims(slope.dims.size(), 1), x.rank());
  if (dims.size() == slope.dims.size()) return false;
  dims[0] = -1;
  const Tensor shape = Tensor::from<int64_t>({static_cast<int64_t>(dims.size())}, dims);
  const ValueId aligned = context.add("Reshape", {context.input(1), context.constant(shape)});
  context.set_output(0, context.add("PRelu", {context.input(0), aligned}));
  return true;
}

void reference_prelu(ReferenceContext& context) {
  require_equal_types(context);
  const Tensor& x = context.inputs[0];
  const std::vector<Dims> dims = operand_dims(context);
  if (broadcast_dims(context.node, dims) != x.dims()) context.fail("the slope does not broadcast to the input");
  Tensor result = make_output(context, x.dtype(), x.dims());
  visit_elements<kNumbers>(context, x.dtype(),
                           [&]<class T>() { broadcast_into<T, T, 2>(context, result, dims, functors::PRelu{}); });
  context.outputs[0] = std::move(result);
}

void infer_prelu(InferContext& context) {
  const TensorType& x = context.input(0);
  const TensorType operands[] = {x, context.input(1)};
  const TensorType both = broadcast_types(context, x.dtype, operands);
  if (x.is_static() && both.is_static() && both.dims != x.dims) {
    context.fail("the slope " + to_string(context.input(1)) + " does not broadcast to the input " + to_string(x));
  }
  infer_same(context);
}

std::optional<Expression> express_prelu(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs) || has_legacy_alignment(node)) return std::nullopt;
  Writer w(inputs);
  const int x = w.x(0);
  const int scaled = w.mul(x, w.x(1));
  w.select(w.op(ExprOp::less, x, w.constant(0)), scaled, x);
  return w.finish();
}

// --- Clip ------------------------------------------------------------------------------------------------------------

constexpr int kBoundsAreInputsSince = 11;

void infer_clip(InferContext& context) {
  if (!context.has_input(0)) context.fail("input 0 is missing");
  for (int i = 1; i < context.input_count(); ++i)
    if (context.has_input(i) && context.input(i).dtype != context.input(0).dtype)
      context.fail("a bound has another type than the input");
  TensorType type = context.input(0);
  type.layout = {};
  context.set_output(0, std::move(type));
}

template <class T>
std::pair<Computing<T>, Computing<T>> bounds_of(const ReferenceContext& context) {
  using C = Computing<T>;
  constexpr bool kIsReal = std::is_floating_point_v<C>;
  C low = kIsReal ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::lowest();
  C high = kIsReal ? std::numeric_limits<C>::infinity() : std::numeric_limits<C>::max();
  const auto read = [&](size_t i, C& bound) {
    if (!context.has_input(i)) return;
    const Tensor& tensor = context.inputs[i];
    if (tensor.dtype() != context.inputs[0].dtype() || tensor.size() != 1)
      context.fail("a bound is no scalar of the input's type");
    bound = static_cast<C>(*elements_of<T>(tensor));
  };
  if (context.node.version >= kBoundsAreInputsSince) {
    read(1, low);
    read(2, high);
  } else if constexpr (kIsReal) {
    if (context.node.attributes.has("min")) low = context.node.attributes.get_float("min", 0);
    if (context.node.attributes.has("max")) high = context.node.attributes.get_float("max", 0);
  }
  return {low, high};
}

void reference_clip(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor result = make_output(context, x.dtype(), x.dims());
  visit_elements<kNumbers>(context, x.dtype(), [&]<class T>() {
    const auto [low, high] = bounds_of<T>(context);
    for (int64_t i = 0; i < x.size(); ++i) {
      auto value = static_cast<Computing<T>>(elements_of<T>(x)[i]);
      if (value < low) value = low;
      if (value > high) value = high;
      elements_of<T>(result)[i] = static_cast<T>(value);
    }
  });
  context.outputs[0] = std::move(result);
}

std::optional<Expression> express_clip(const Node& node, std::span<const TensorType> inputs,
                                       const ConstantOf& constant) {
  if (!all_float32(inputs.first(1))) return std::nullopt;
  Writer w(inputs);
  int value = w.x(0);
  const auto bound = [&](ExprOp op, int slot, const char* attribute) {
    if (node.version < kBoundsAreInputsSince) {
      if (node.attributes.has(attribute)) value = w.op(op, value, w.constant(node.attributes.get_float(attribute, 0)));
      return;
    }
    if (inputs.size() <= static_cast<size_t>(slot) || inputs[static_cast<size_t>(slot)].dtype != DType::f32) return;
    const Tensor known = constant(slot);
    if (known.defined() && known.size() == 1)
      value = w.op(op, value, w.constant(*known.data<float>()));
    else
      value = w.op(op, value, w.x(slot));
  };
  bound(ExprOp::max, 1, "min");
  bound(ExprOp::min, 2, "max");
  if (value == 0) w.select(w.constant(0), value, value);  // no bounds at all
  return w.finish();
}

// Of wide integers and float64, between known bounds.
bool lower_clip(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  const DType dtype = context.input_type(0).dtype;
  const bool is_old = context.node.version < kBoundsAreInputsSince;
  if (is_old || dtype == DType::f32 || dtype == DType::boolean) return false;
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.has_input(i) && (!context.constant(i).defined() || context.constant(i).size() != 1)) return false;
  }
  return visit_row_type(dtype, [&]<class T>() {
    constexpr bool kIsReal = std::is_floating_point_v<T>;
    T low = kIsReal ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
    T high = kIsReal ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
    if (context.has_input(1)) low = *static_cast<const T*>(context.constant(1).raw());
    if (context.has_input(2)) high = *static_cast<const T*>(context.constant(2).raw());
    const auto clip = [low, high](T value) {
      const T raised = value < low ? low : value;
      return raised > high ? high : raised;
    };
    return add_row_step(
        context, [clip](const RowOperands& row) { unary_row<T, T>(row, clip); }, "rows");
  });
}

// --- the table -------------------------------------------------------------------------------------------------------

OpDef activation(std::string_view name, int since, std::vector<AttributeSpec> attributes, ReferenceFn* reference,
                 ExpressFn* express_as, std::string_view domain = "") {
  return {.schema = {.name = name,
                     .domain = domain,
                     .since = since,
                     .attributes = std::move(attributes),
                     .infer = infer_same,
                     .reference = reference,
                     .express = express_as,
                     .layout = LayoutRole::any_same},
          .lower = lower_pointwise};
}

// Float64, and integers where the function has them: plain loops. As many operations as an element takes by <cmath>.
template <class F, unsigned Set>
bool lower_activation(LowerContext& context) {
  constexpr double kWork = 40;
  if (lower_pointwise(context)) return true;
  const F f = functor_for<F>(context.node);
  if constexpr (Set == kNumbers) return lower_unary_rows(context, f);
  return lower_unary_rows(
      context, [f]<std::floating_point C>(C x) { return f(x); }, kWork);
}

bool lower_prelu(LowerContext& context) {
  return lower_pointwise(context) || lower_binary_rows(context, functors::PRelu{});
}

template <class F, unsigned Set>
OpDef activation(std::string_view name, int since, std::vector<AttributeSpec> attributes, ExpressFn* express_as,
                 std::string_view domain = "") {
  OpDef def = activation(name, since, std::move(attributes), reference_unary<F, Set>, express_as, domain);
  def.lower = lower_activation<F, Set>;
  return def;
}

OpDef lowered_by(OpDef def, LowerFn* lower) {
  def.lower = lower;
  return def;
}

OpDef with_inputs(OpDef def, int least, int most, InferFn* infer) {
  def.schema.min_inputs = least;
  def.schema.max_inputs = most;
  def.schema.infer = infer;
  return def;
}

}  // namespace

std::vector<OpDef> activation_ops() {
  namespace f = functors;
  constexpr std::string_view kMicrosoft = "com.microsoft";
  const OpDef clip = lowered_by(
      with_inputs(activation("Clip", 1, {{"min", Kind::real}, {"max", Kind::real}}, reference_clip, express_clip), 1, 3,
                  infer_clip),
      lower_clip);
  OpDef prelu = with_inputs(lowered_by(activation("PRelu", 1, {}, reference_prelu, express_prelu), lower_prelu), 2, 2,
                            infer_prelu);
  prelu.schema.expand = expand_prelu;
  return {
      activation<f::Relu, kNumbers>("Relu", 1, {}, express<relu>),
      activation<f::LeakyRelu, kReals>("LeakyRelu", 1, {{"alpha", Kind::real}}, express<leaky_relu>),
      activation<f::ThresholdedRelu, kReals>("ThresholdedRelu", 1, {{"alpha", Kind::real}}, express<thresholded_relu>),
      activation<f::Elu, kReals>("Elu", 1, {{"alpha", Kind::real}}, express<elu>),
      activation<f::Selu, kReals>("Selu", 1, {{"alpha", Kind::real}, {"gamma", Kind::real}}, express<selu>),
      activation<f::Celu, kReals>("Celu", 12, {{"alpha", Kind::real}}, express<celu>),
      lowered_by(activation<f::Sigmoid, kReals>("Sigmoid", 1, {}, express<sigmoid>), lower_doubles<sigmoid_row>),
      lowered_by(activation<f::Tanh, kReals>("Tanh", 1, {}, express<tanh>), lower_doubles<tanh_row>),
      activation<f::HardSigmoid, kReals>("HardSigmoid", 1, {{"alpha", Kind::real}, {"beta", Kind::real}},
                                         express<hard_sigmoid>),
      activation<f::HardSwish, kReals>("HardSwish", 14, {}, express<hard_swish>),
      activation<f::Softplus, kReals>("Softplus", 1, {}, express<softplus>),
      activation<f::Softsign, kReals>("Softsign", 1, {}, express<softsign>),
      activation<f::Gelu, kReals>("Gelu", 20, {{"approximate", Kind::string}}, express<gelu>),
      activation<f::Mish, kReals>("Mish", 18, {}, express<mish>),
      activation<f::Swish, kReals>("Swish", 24, {{"alpha", Kind::real}}, express<swish>),
      activation<f::Shrink, kNumbers>("Shrink", 9, {{"bias", Kind::real}, {"lambd", Kind::real}}, express<shrink>),
      prelu,
      clip,
      activation<f::GeluErf, kReals>("Gelu", 1, {}, express<gelu_erf>, kMicrosoft),
      activation<f::QuickGelu, kReals>("QuickGelu", 1, {{"alpha", Kind::real}}, express<quick_gelu>, kMicrosoft),
      with_inputs(activation("FastGelu", 1, {}, reference_biased<f::GeluTanh>, express_biased<gelu_tanh>, kMicrosoft),
                  1, 2, infer_biased),
      with_inputs(activation("BiasGelu", 1, {}, reference_biased<f::GeluErf>, express_biased<gelu_erf>, kMicrosoft), 2,
                  2, infer_biased),
  };
}

}  // namespace lathe::ops
