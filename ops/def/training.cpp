// ai.onnx.preview.training: one step of Adagrad, Adam or Momentum for any number of tensors, and Gradient, which a pass
// replaces (graph/gradient.h).
//
// Inputs of the optimizers: learning rate, update count, then all tensors, all gradients, and the moments, one list
// after the other. Outputs: the new tensors, then the new moments.
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

constexpr int kMostMoments = 2;

// One element: its gradient and moments; gives the new element and changes the moments.
using UpdateElement = std::function<double(double x, double gradient, double* moments)>;

template <class Context>
int tensor_count(const Context& context, int inputs, int moments) {
  const int lists = 2 + moments;
  if (inputs <= 2 || (inputs - 2) % lists != 0) {
    context.fail("has " + std::to_string(inputs) + " inputs, expected 2 and a multiple of " + std::to_string(lists));
  }
  return (inputs - 2) / lists;
}

template <int Moments>
void infer_update(InferContext& context) {
  const int count = tensor_count(context, context.input_count(), Moments);
  if (context.output_count() > count * (1 + Moments)) {
    context.fail("has " + std::to_string(context.output_count()) + " outputs, expected " +
                 std::to_string(count * (1 + Moments)));
  }
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
  }
  for (int i = 0; i < context.output_count(); ++i) context.set_output(i, context.input(2 + i % count));
}

void update(ReferenceContext& context, int moments, const UpdateElement& next) {
  const auto count = static_cast<size_t>(tensor_count(context, static_cast<int>(context.inputs.size()), moments));
  const auto lists = static_cast<size_t>(moments);
  for (size_t t = 0; t < count; ++t) {
    const Tensor& x = context.inputs[2 + t];
    std::vector<std::vector<double>> operands;
    std::vector<Tensor> results;
    for (size_t list = 0; list < 2 + lists; ++list) {
      const Tensor& operand = context.inputs[2 + list * count + t];
      if (operand.dims() != x.dims() || operand.dtype() != x.dtype()) {
        context.fail("input " + std::to_string(2 + list * count + t) + " is " + to_string(operand.dims()) +
                     ", its tensor " + to_string(x.dims()));
      }
      operands.push_back(reals_of(operand));
      if (list > 0) results.push_back(make_output(context, x.dtype(), x.dims()));
    }
    for (size_t i = 0; i < static_cast<size_t>(x.size()); ++i) {
      double held[kMostMoments] = {};
      for (size_t m = 0; m < lists; ++m) held[m] = operands[2 + m][i];
      store_real(results[0], static_cast<int64_t>(i), next(operands[0][i], operands[1][i], held));
      for (size_t m = 0; m < lists; ++m) store_real(results[1 + m], static_cast<int64_t>(i), held[m]);
    }
    for (size_t list = 0; list < results.size() && list * count + t < context.outputs.size(); ++list) {
      context.outputs[list * count + t] = results[list];
    }
  }
}

struct Schedule {
  double rate, count;
};
Schedule schedule_of(const ReferenceContext& context) {
  return {real_scalar(context, context.inputs[0], "input 0 (R)"),
          static_cast<double>(integer_scalar(context, context.inputs[1], "input 1 (T)"))};
}

void run_adagrad(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const Schedule schedule = schedule_of(context);
  const double rate = schedule.rate / (1 + schedule.count * double{attributes.get_float("decay_factor", 0)});
  const double norm = attributes.get_float("norm_coefficient", 0), epsilon = attributes.get_float("epsilon", 1e-6F);
  update(context, 1, [=](double x, double gradient, double* moments) {
    const double regular = norm * x + gradient;
    moments[0] += regular * regular;
    return x - rate * regular / (std::sqrt(moments[0]) + epsilon);
  });
}

void run_adam(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const Schedule schedule = schedule_of(context);
  const double alpha = attributes.get_float("alpha", 0.9F), beta = attributes.get_float("beta", 0.999F);
  const double norm = attributes.get_float("norm_coefficient", 0), epsilon = attributes.get_float("epsilon", 1e-6F);
  const double post = attributes.get_float("norm_coefficient_post", 0);
  const double rate = schedule.count > 0 ? schedule.rate * std::sqrt(1 - std::pow(beta, schedule.count)) /
                                               (1 - std::pow(alpha, schedule.count))
                                         : schedule.rate;
  update(context, 2, [=](double x, double gradient, double* moments) {
    const double regular = norm * x + gradient;
    moments[0] = alpha * moments[0] + (1 - alpha) * regular;
    moments[1] = beta * moments[1] + (1 - beta) * regular * regular;
    return (1 - post) * (x - rate * moments[0] / (std::sqrt(moments[1]) + epsilon));
  });
}

void run_momentum(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const Schedule schedule = schedule_of(context);
  const double alpha = attributes.get_float("alpha", 0), norm = attributes.get_float("norm_coefficient", 0);
  const double beta = schedule.count > 0 ? double{attributes.get_float("beta", 0)} : 1;
  const std::string mode = attributes.get_string("mode", "");
  if (mode != "standard" && mode != "nesterov") {
    context.fail("attribute 'mode' is '" + mode + "', expected standard or nesterov");
  }
  const bool is_nesterov = mode == "nesterov";
  update(context, 1, [=](double x, double gradient, double* moments) {
    const double regular = norm * x + gradient;
    moments[0] = alpha * moments[0] + beta * regular;
    return x - schedule.rate * (is_nesterov ? regular + alpha * moments[0] : moments[0]);
  });
}

OpDef optimizer(const char* name, std::vector<AttributeSpec> attributes, InferFn* infer, ReferenceFn* reference) {
  return {.schema = {.name = name,
                     .domain = "ai.onnx.preview.training",
                     .min_inputs = 3,
                     .max_inputs = -1,
                     .max_outputs = -1,
                     .attributes = std::move(attributes),
                     .infer = infer,
                     .reference = reference}};
}

// Inputs: what stands for `xs`, then for `zs`. Outputs: the gradients of the former.
void infer_gradient(InferContext& context) {
  for (int i = 0; i < context.output_count(); ++i) {
    if (!context.has_input(i)) context.fail("has more outputs than inputs");
    context.set_output(i, context.input(i));
  }
}

void reference_gradient(ReferenceContext& context) { context.fail("names values of a graph: it has no meaning alone"); }

OpDef gradient() {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = "Gradient",
                     .domain = "ai.onnx.preview.training",
                     .min_inputs = 1,
                     .max_inputs = -1,
                     .max_outputs = -1,
                     .attributes = {{"xs", Kind::strings, true}, {"y", Kind::string, true}, {"zs", Kind::strings}},
                     .infer = infer_gradient,
                     .reference = reference_gradient,
                     .deterministic = false}};
}

}  // namespace

std::vector<OpDef> training_ops() {
  using Kind = AttributeSpec::Kind;
  return {
      optimizer("Adagrad", {{"decay_factor", Kind::real}, {"epsilon", Kind::real}, {"norm_coefficient", Kind::real}},
                infer_update<1>, run_adagrad),
      optimizer("Adam",
                {{"alpha", Kind::real},
                 {"beta", Kind::real},
                 {"epsilon", Kind::real},
                 {"norm_coefficient", Kind::real},
                 {"norm_coefficient_post", Kind::real}},
                infer_update<2>, run_adam),
      optimizer("Momentum",
                {{"alpha", Kind::real, true},
                 {"beta", Kind::real, true},
                 {"mode", Kind::string, true},
                 {"norm_coefficient", Kind::real, true}},
                infer_update<1>, run_momentum),
      gradient()};
}

}  // namespace lathe::ops
