// LinearClassifier and LinearRegressor of ai.onnx.ml.
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/ml/ml_scores.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

struct LinearModel {
  int64_t targets, features;
  std::vector<float> coefficients, intercepts;
};

LinearModel model_of(const ReferenceContext& context, int64_t features, int64_t targets) {
  LinearModel model{targets, features, context.node.attributes.get_floats("coefficients"),
                    context.node.attributes.get_floats("intercepts")};
  const auto given = static_cast<int64_t>(model.coefficients.size());
  // Where intercepts say how many targets there are, coefficients may be left over: files have them, and they run
  // elsewhere.
  const bool may_be_more = !model.intercepts.empty();
  if (targets < 1 || given / targets < features || (!may_be_more && given != targets * features)) {
    context.fail("has " + std::to_string(given) + " coefficients for " + std::to_string(targets) + " targets of " +
                 std::to_string(features) + " features");
  }
  if (!model.intercepts.empty() && static_cast<int64_t>(model.intercepts.size()) != targets) {
    context.fail("has " + std::to_string(model.intercepts.size()) + " intercepts for " + std::to_string(targets) +
                 " targets");
  }
  return model;
}

std::vector<double> scores_of(const LinearModel& model, const double* row) {
  std::vector<double> scores;
  const float* weights = model.coefficients.data();
  for (int64_t t = 0; t < model.targets; ++t, weights += model.features) {
    double sum = model.intercepts.empty() ? 0 : model.intercepts[static_cast<size_t>(t)];
    for (int64_t f = 0; f < model.features; ++f) sum += row[f] * weights[f];
    scores.push_back(sum);
  }
  return scores;
}

// ---- LinearRegressor

void infer_regressor(InferContext& context) {
  post_transform_of(context.node);
  context.set_output(0, scores_type(context, DType::f32, {context.node.attributes.get_int("targets", 1), ""}));
}

void run_regressor(ReferenceContext& context) {
  const RowShape shape = row_shape(context, context.inputs[0]);
  const LinearModel model = model_of(context, shape.columns, context.node.attributes.get_int("targets", 1));
  const PostTransform transform = post_transform_of(context.node);
  const std::vector<double> input = reals_of(context.inputs[0]);
  std::vector<double> all;
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::vector<double> scores = scores_of(model, input.data() + row * shape.columns);
    transform_scores(transform, SecondScore::absent, scores);
    all.insert(all.end(), scores.begin(), scores.end());
  }
  context.outputs[0] = tensor_of_reals(context, DType::f32, {shape.rows, model.targets}, all);
}

// ---- LinearClassifier

ClassLabels labels_of_node(const Node& node) { return class_labels(node, "classlabels_ints", "classlabels_strings"); }

void infer_classifier(InferContext& context) {
  post_transform_of(context.node);
  const ClassLabels labels = labels_of_node(context.node);
  context.set_output(0, labels_type(context, labels));
  const bool is_known = labels.size() > 1;
  const bool is_probit = post_transform_of(context.node) == PostTransform::probit;
  context.set_output(1, scores_type(context, DType::f32,
                                    is_known && !is_probit ? Dim{static_cast<int64_t>(labels.size()), ""} : Dim()));
}

void run_classifier(ReferenceContext& context) {
  const RowShape shape = row_shape(context, context.inputs[0]);
  const ClassLabels labels = labels_of_node(context.node);
  const PostTransform transform = post_transform_of(context.node);
  const auto given = static_cast<int64_t>(context.node.attributes.get_floats("coefficients").size());
  const auto intercepts = static_cast<int64_t>(context.node.attributes.get_floats("intercepts").size());
  const int64_t targets = intercepts > 0 ? intercepts : shape.columns == 0 ? 0 : given / shape.columns;
  const LinearModel model = model_of(context, shape.columns, targets);
  const bool is_binary = targets == 1;
  if (labels.size() != 0 && static_cast<int64_t>(labels.size()) != targets && !(is_binary && labels.size() == 2)) {
    context.fail("has " + std::to_string(labels.size()) + " labels for " + std::to_string(targets) + " targets");
  }
  const SecondScore second = is_binary && labels.size() == 2 ? SecondScore::complement : SecondScore::absent;
  const std::vector<double> input = reals_of(context.inputs[0]);
  std::vector<int64_t> classes;
  std::vector<double> all;
  int64_t columns = targets;
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::vector<double> scores = scores_of(model, input.data() + row * shape.columns);
    const auto best = std::max_element(scores.begin(), scores.end());
    // One label of its own stands for the positive class; the negative one has no name but 0.
    classes.push_back(is_binary ? scores[0] > 0 : best - scores.begin());
    transform_scores(transform, second, scores);
    columns = static_cast<int64_t>(scores.size());
    all.insert(all.end(), scores.begin(), scores.end());
  }
  ClassLabels named = labels;
  if (is_binary && labels.size() == 1) {
    if (named.are_texts()) named.texts.insert(named.texts.begin(), "0");
    if (!named.are_texts()) named.integers.insert(named.integers.begin(), 0);
  }
  context.outputs[0] = labels_of(named, classes);
  if (context.outputs.size() > 1) {
    context.outputs[1] = tensor_of_reals(context, DType::f32, {shape.rows, columns}, all);
  }
}

// ---- Expansions: of rows of float32

// The scores of each row; none: coefficients that do not fit, or extents that are not known yet.
ValueId add_scores(ExpandContext& context, int64_t targets) {
  const TensorType type = context.input_type(0);
  const std::vector<float> weights = context.node.attributes.get_floats("coefficients"),
                           intercepts = context.node.attributes.get_floats("intercepts");
  if (type.dtype != DType::f32 || type.rank() != 2 || !type.has_rank || !type.dims[1].known()) return ValueId::none;
  const int64_t features = type.dims[1].extent;
  if (targets < 1 || features < 1 || static_cast<int64_t>(weights.size()) != targets * features) return ValueId::none;
  if (!intercepts.empty() && static_cast<int64_t>(intercepts.size()) != targets) return ValueId::none;
  std::vector<ValueId> operands{
      context.input(0), context.constant(Tensor::from<float>({targets, features}, std::span<const float>(weights)))};
  if (!intercepts.empty()) {
    operands.push_back(context.constant(Tensor::from<float>({targets}, std::span<const float>(intercepts))));
  }
  return context.add("Gemm", std::move(operands), {{"transB", int64_t{1}}});
}

bool expand_regressor(ExpandContext& context) {
  if (post_transform_of(context.node) != PostTransform::none) return false;
  const ValueId scores = add_scores(context, context.node.attributes.get_int("targets", 1));
  if (scores == ValueId::none) return false;
  context.set_output(0, scores);
  return true;
}

// Of several scores a row, each with an integer for a label.
bool expand_classifier(ExpandContext& context) {
  const ClassLabels labels = labels_of_node(context.node);
  const PostTransform transform = post_transform_of(context.node);
  const bool is_known =
      transform == PostTransform::none || transform == PostTransform::softmax || transform == PostTransform::logistic;
  if (labels.are_texts() || labels.size() < 2 || !is_known) return false;
  const auto classes = static_cast<int64_t>(labels.size());
  const TensorType type = context.input_type(0);
  const auto given = static_cast<int64_t>(context.node.attributes.get_floats("coefficients").size());
  if (!type.has_rank || type.rank() != 2 || type.dims[1].extent < 1 || given != classes * type.dims[1].extent)
    return false;
  const ValueId scores = add_scores(context, classes);
  if (scores == ValueId::none) return false;
  const ValueId best = context.add("ArgMax", {scores}, {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}});
  const ValueId names = context.constant(Tensor::from<int64_t>({classes}, std::span<const int64_t>(labels.integers)));
  context.set_output(0, context.add("Gather", {names, best}));
  if (!context.has_output(1)) return true;
  context.set_output(1, transform == PostTransform::none      ? scores
                        : transform == PostTransform::softmax ? context.add("Softmax", {scores}, {{"axis", int64_t{1}}})
                                                              : context.add("Sigmoid", {scores}));
  return true;
}

}  // namespace

std::vector<OpDef> ml_linear_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "LinearRegressor",
                      .domain = "ai.onnx.ml",
                      .attributes = {{"coefficients", Kind::reals},
                                     {"intercepts", Kind::reals},
                                     {"post_transform", Kind::string},
                                     {"targets", Kind::integer}},
                      .infer = infer_regressor,
                      .reference = run_regressor,
                      .expand = expand_regressor}},
          {.schema = {.name = "LinearClassifier",
                      .domain = "ai.onnx.ml",
                      .max_outputs = 2,
                      .attributes = {{"classlabels_ints", Kind::integers},
                                     {"classlabels_strings", Kind::strings},
                                     {"coefficients", Kind::reals, true},
                                     {"intercepts", Kind::reals},
                                     {"multi_class", Kind::integer},
                                     {"post_transform", Kind::string}},
                      .infer = infer_classifier,
                      .reference = run_classifier,
                      .expand = expand_classifier}}};
}

}  // namespace lathe::ops
