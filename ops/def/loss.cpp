// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: scores [N, C, d...] against class labels [N, d...].
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

enum class LossReduction : uint8_t { none, mean, sum };

template <class Context>
LossReduction reduction_of(const Context& context) {
  const std::string text = context.node.attributes.get_string("reduction", "mean");
  if (text == "none") return LossReduction::none;
  if (text == "mean") return LossReduction::mean;
  if (text != "sum") context.fail("attribute 'reduction' is '" + text + "', expected none, mean or sum");
  return LossReduction::sum;
}

// ---- Inference

// The extents of the labels as the scores have them: all but the classes.
TensorType labels_type(const InferContext& context) {
  const TensorType &scores = context.input(0), &labels = context.input(1);
  if (scores.has_rank && scores.rank() < 2) {
    context.fail("input 0 has rank " + std::to_string(scores.rank()) + ", expected at least 2");
  }
  if (scores.has_rank && labels.has_rank && labels.rank() != scores.rank() - 1) {
    context.fail("input 1 has rank " + std::to_string(labels.rank()) + ", expected " +
                 std::to_string(scores.rank() - 1));
  }
  TensorType result{scores.dtype, scores.has_rank, scores.dims, {}};
  if (!scores.has_rank) return {scores.dtype, labels.has_rank, labels.dims, {}};
  result.dims.erase(result.dims.begin() + 1);
  for (size_t i = 0; i < result.dims.size() && labels.has_rank; ++i) {
    const Dim& given = labels.dims[i];
    if (given.known() && result.dims[i].known() && given != result.dims[i] && given.extent != result.dims[i].extent) {
      context.fail("input 1 is " + to_string(labels) + ", it does not fit the scores " + to_string(scores));
    }
    if (given.known()) result.dims[i] = given;
  }
  return result;
}

void infer_loss(InferContext& context) {
  const TensorType labels = labels_type(context);
  const bool keeps_extents = reduction_of(context) == LossReduction::none;
  context.set_output(0, keeps_extents ? labels : TensorType::of(labels.dtype, {}));
  TensorType log_probabilities = context.input(0);
  log_probabilities.layout = {};
  context.set_output(1, std::move(log_probabilities));
}

// ---- References

struct LossOperands {
  AxisSplit split;  // of the scores, at the classes
  std::vector<int64_t> labels;
  std::vector<double> weights;  // by class; empty: all 1
  bool ignores = false;
  int64_t ignored = 0;
};

LossOperands operands_of(const ReferenceContext& context) {
  const Tensor &scores = context.inputs[0], &labels = context.inputs[1];
  if (scores.rank() < 2) context.fail("input 0 has rank " + std::to_string(scores.rank()) + ", expected at least 2");
  Dims expected = scores.dims();
  expected.erase(expected.begin() + 1);
  if (labels.dims() != expected) {
    context.fail("input 1 is " + to_string(labels.dims()) + ", expected " + to_string(expected));
  }
  LossOperands operands{split_at(scores.dims(), 1), integers_of_any(labels), {}};
  operands.ignores = context.node.attributes.has("ignore_index");
  operands.ignored = context.node.attributes.get_int("ignore_index", 0);
  if (context.has_input(2)) {
    operands.weights = reals_of(context.inputs[2]);
    if (static_cast<int64_t>(operands.weights.size()) != operands.split.extent) {
      context.fail("input 2 has " + std::to_string(operands.weights.size()) + " weights for " +
                   std::to_string(operands.split.extent) + " classes");
    }
  }
  for (const int64_t label : operands.labels) {
    if (operands.ignores && label == operands.ignored) continue;
    if (label < 0 || label >= operands.split.extent) {
      context.fail("label " + std::to_string(label) + " is out of range for " + std::to_string(operands.split.extent) +
                   " classes");
    }
  }
  return operands;
}

// The loss of each label from log probabilities, reduced.
Tensor loss_of(const ReferenceContext& context, const LossOperands& operands, const std::vector<double>& log_p) {
  const LossReduction reduction = reduction_of(context);
  std::vector<double> losses(operands.labels.size(), 0);
  double applied = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const int64_t label = operands.labels[i];
    if (operands.ignores && label == operands.ignored) continue;
    const double weight = operands.weights.empty() ? 1 : operands.weights[static_cast<size_t>(label)];
    const int64_t inner = operands.split.inner, at = static_cast<int64_t>(i);
    const int64_t from = (at / inner * operands.split.extent + label) * inner + at % inner;
    losses[i] = -log_p[static_cast<size_t>(from)] * weight;
    applied += weight;
  }
  const DType dtype = context.inputs[0].dtype();
  if (reduction == LossReduction::none) return tensor_of_reals(context, dtype, context.inputs[1].dims(), losses);
  double total = std::accumulate(losses.begin(), losses.end(), 0.0);
  if (reduction == LossReduction::mean) total /= applied;
  return tensor_of_reals(context, dtype, {}, std::span<const double>(&total, 1));
}

void run_negative_log_likelihood(ReferenceContext& context) {
  const LossOperands operands = operands_of(context);
  context.outputs[0] = loss_of(context, operands, reals_of(context.inputs[0]));
}

// Along the classes, in place.
void log_softmax(std::vector<double>& scores, const AxisSplit& split) {
  for (int64_t row = 0; row < split.outer * split.inner; ++row) {
    double* first = scores.data() + row / split.inner * split.extent * split.inner + row % split.inner;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t c = 0; c < split.extent; ++c) largest = std::max(largest, first[c * split.inner]);
    for (int64_t c = 0; c < split.extent; ++c) sum += std::exp(first[c * split.inner] - largest);
    const double shift = largest + std::log(sum);
    for (int64_t c = 0; c < split.extent; ++c) first[c * split.inner] -= shift;
  }
}

void run_softmax_cross_entropy(ReferenceContext& context) {
  const LossOperands operands = operands_of(context);
  std::vector<double> log_p = reals_of(context.inputs[0]);
  log_softmax(log_p, operands.split);
  context.outputs[0] = loss_of(context, operands, log_p);
  if (context.outputs.size() > 1) {
    context.outputs[1] = tensor_of_reals(context, context.inputs[0].dtype(), context.inputs[0].dims(), log_p);
  }
}

OpDef loss(const char* name, int outputs, ReferenceFn* reference) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = name,
                     .since = 12,
                     .min_inputs = 2,
                     .max_inputs = 3,
                     .max_outputs = outputs,
                     .attributes = {{"ignore_index", Kind::integer}, {"reduction", Kind::string}},
                     .infer = infer_loss,
                     .reference = reference}};
}

}  // namespace

std::vector<OpDef> loss_ops() {
  return {loss("NegativeLogLikelihoodLoss", 1, run_negative_log_likelihood),
          loss("SoftmaxCrossEntropyLoss", 2, run_softmax_cross_entropy)};
}

}  // namespace lathe::ops
