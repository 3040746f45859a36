#include "ops/ml/ml_scores.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/numbers.h"

namespace lathe {
namespace {

double logistic(double x) {
  const double positive = 1 / (1 + std::exp(-std::abs(x)));
  return x < 0 ? 1 - positive : positive;
}

// Winitzki's approximation of the inverse error function, which ONNX Runtime uses too.
double inverse_erf(double x) {
  const double sign = x < 0 ? -1 : 1, rest = (1 - x) * (1 + x);
  if (rest == 0) return 0;
  const double log = std::log(rest), v = 2 / (std::numbers::pi * 0.147) + 0.5 * log, v2 = log / 0.147;
  return sign * std::sqrt(-v + std::sqrt(v * v - v2));
}

double probit(double x) { return std::numbers::sqrt2 * inverse_erf(2 * x - 1); }

void softmax(std::span<double> scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (double& score : scores) score /= sum;
}

// As softmax, but a score of zero stays zero.
void softmax_zero(std::span<double> scores) {
  constexpr double kZero = 1e-7;
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) {
    score = std::abs(score) > kZero ? std::exp(score - most) : score * std::exp(-most);
    sum += score;
  }
  for (double& score : scores) score = sum == 0 ? 0.5 : score / sum;
}

void transform_all(PostTransform transform, std::span<double> scores) {
  switch (transform) {
    case PostTransform::none:
      return;
    case PostTransform::softmax:
      return softmax(scores);
    case PostTransform::softmax_zero:
      return softmax_zero(scores);
    case PostTransform::logistic:
      std::transform(scores.begin(), scores.end(), scores.begin(), logistic);
      return;
    case PostTransform::probit:
      std::transform(scores.begin(), scores.end(), scores.begin(), probit);
      return;
  }
}

}  // namespace

PostTransform post_transform_of(const Node& node) {
  const std::string name = node.attributes.get_string("post_transform", "NONE");
  if (name == "NONE") return PostTransform::none;
  if (name == "SOFTMAX") return PostTransform::softmax;
  if (name == "LOGISTIC") return PostTransform::logistic;
  if (name == "SOFTMAX_ZERO") return PostTransform::softmax_zero;
  if (name == "PROBIT") return PostTransform::probit;
  throw Error(ErrorCode::invalid_model, describe(node) + ": attribute post_transform is " + in_quotes(name));
}

size_t transform_scores(PostTransform transform, SecondScore second, double* scores, size_t count) {
  if (count == 0) return 0;
  if (count == 1 && transform != PostTransform::probit) {
    if (second == SecondScore::absent) return 1;
    const bool is_logistic = transform == PostTransform::logistic;
    scores[1] = scores[0];
    scores[0] = second == SecondScore::complement && !is_logistic ? 1 - scores[1] : -scores[1];
    if (!is_logistic) return 2;
    count = 2;
  }
  transform_all(transform, {scores, count});
  return count;
}

void transform_scores(PostTransform transform, SecondScore second, std::vector<double>& scores) {
  const size_t count = scores.size();
  scores.resize(std::max<size_t>(count, 2));
  scores.resize(transform_scores(transform, second, scores.data(), count));
}

ClassLabels class_labels(const Node& node, const char* integers, const char* texts) {
  ClassLabels labels{node.attributes.get_ints(integers), node.attributes.get_strings(texts)};
  if (!labels.integers.empty() && !labels.texts.empty()) {
    throw Error(ErrorCode::invalid_model, describe(node) + ": has labels of two types");
  }
  return labels;
}

Tensor labels_of(const ClassLabels& labels, const std::vector<int64_t>& classes) {
  Tensor result(labels.dtype(), {static_cast<int64_t>(classes.size())});
  for (size_t i = 0; i < classes.size(); ++i) {
    const auto number = static_cast<size_t>(classes[i]);
    if (labels.are_texts()) {
      result.mutable_data<std::string>()[i] = labels.texts[number];
    } else {
      result.mutable_data<int64_t>()[i] = labels.integers.empty() ? classes[i] : labels.integers[number];
    }
  }
  return result;
}

RowShape row_shape(const ReferenceContext& context, const Tensor& input) {
  if (input.rank() == 1) return {1, input.dims()[0]};
  if (input.rank() == 2) return {input.dims()[0], input.dims()[1]};
  context.fail("input 0 has rank " + std::to_string(input.rank()) + ", expected 1 or 2");
}

TensorType scores_type(const InferContext& context, DType dtype, Dim columns) {
  const TensorType& input = context.input(0);
  Dim rows;
  if (input.has_rank) rows = input.rank() == 2 ? input.dims[0] : Dim{1, ""};
  return {dtype, true, {rows, std::move(columns)}, {}};
}

TensorType labels_type(const InferContext& context, const ClassLabels& labels) {
  TensorType type = scores_type(context, labels.dtype(), Dim());
  type.dims.pop_back();
  return type;
}

std::vector<double> reals_attribute(const Node& node, const std::string& name) {
  const Tensor tensor = node.attributes.get_tensor(name + "_as_tensor");
  if (tensor.defined()) return reals_of(tensor);
  const std::vector<float> list = node.attributes.get_floats(name);
  return {list.begin(), list.end()};
}

}  // namespace lathe
