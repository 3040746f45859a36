// SwiGLU: a gate through Swish times a value.
#include <cmath>

#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"

namespace lathe::ops {
namespace {

struct SwiGlu {
  explicit SwiGlu(const Node& node) : alpha(node.attributes.get_float("alpha", 1)) {}
  template <class C>
  C operator()(C gate, C value) const {
    return gate / (1 + std::exp(-alpha * gate)) * value;
  }
  float alpha;
};

void infer_swiglu(InferContext& context) {
  const TensorType &gate = context.input(0), &value = context.input(1);
  if (gate.is_static() && value.is_static() && gate.dims != value.dims) {
    context.fail("its inputs are " + to_string(gate) + " and " + to_string(value) + ", expected equal shapes");
  }
  infer_broadcast(context);
}

void run_swiglu(ReferenceContext& context) {
  if (context.inputs[0].dims() != context.inputs[1].dims()) {
    context.fail("its inputs are " + to_string(context.inputs[0].dims()) + " and " +
                 to_string(context.inputs[1].dims()) + ", expected equal shapes");
  }
  reference_binary<SwiGlu, kReals>(context);
}

std::optional<Expression> express_swiglu(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  const int gate = w.x(0), value = w.x(1);
  const float alpha = node.attributes.get_float("alpha", 1);
  const int argument = alpha == 1 ? gate : w.mul(gate, w.constant(alpha));
  w.mul(w.mul(gate, w.op(ExprOp::sigmoid, argument)), value);
  return w.finish();
}

}  // namespace

std::vector<OpDef> gated_ops() {
  return {{.schema = {.name = "SwiGLU",
                      .since = 28,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"alpha", AttributeSpec::Kind::real}},
                      .infer = infer_swiglu,
                      .reference = run_swiglu,
                      .express = express_swiglu,
                      .layout = LayoutRole::any_same},
           .lower = lower_pointwise}};
}

}  // namespace lathe::ops
