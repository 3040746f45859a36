// SVMClassifier and SVMRegressor of ai.onnx.ml.
#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/ml/ml_scores.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

[[noreturn]] void fail(const Node& node, const std::string& what) {
  throw Error(ErrorCode::invalid_model, describe(node) + ": " + what);
}

// ---- Kernels

// Squares of differences, or products, in eight sums.
template <bool kIsDistance>
[[gnu::target("avx2,fma")]] double sum_over(const double* row, const float* vector, int64_t length) {
  constexpr int64_t kLanes = 4;
  __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  int64_t i = 0;
  for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
    for (int64_t k = 0; k < 2; ++k) {
      const __m256d x = _mm256_loadu_pd(row + i + k * kLanes),
                    y = _mm256_cvtps_pd(_mm_loadu_ps(vector + i + k * kLanes));
      const __m256d difference = _mm256_sub_pd(x, y);
      sums[k] = kIsDistance ? _mm256_fmadd_pd(difference, difference, sums[k]) : _mm256_fmadd_pd(x, y, sums[k]);
    }
  }
  alignas(32) double lanes[kLanes];
  _mm256_store_pd(lanes, _mm256_add_pd(sums[0], sums[1]));
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  for (; i < length; ++i) {
    const double difference = row[i] - vector[i];
    sum += kIsDistance ? difference * difference : row[i] * vector[i];
  }
  return sum;
}

class Kernel {
 public:
  explicit Kernel(const Node& node) {
    const std::string name = node.attributes.get_string("kernel_type", "LINEAR");
    if (name == "POLY") kind_ = Kind::poly;
    if (name == "RBF") kind_ = Kind::rbf;
    if (name == "SIGMOID") kind_ = Kind::sigmoid;
    if (kind_ == Kind::linear && name != "LINEAR") fail(node, "attribute kernel_type is " + in_quotes(name));
    const std::vector<float> parameters = node.attributes.get_floats("kernel_params");
    if (!parameters.empty() && parameters.size() != 3) {
      fail(node, "attribute kernel_params has " + std::to_string(parameters.size()) + " elements, expected 3");
    }
    if (parameters.empty()) return;
    gamma_ = parameters[0];
    offset_ = parameters[1];
    degree_ = parameters[2];
  }

  double operator()(const double* row, const float* vector, int64_t length) const {
    const double sum = kind_ == Kind::rbf ? sum_over<true>(row, vector, length) : sum_over<false>(row, vector, length);
    switch (kind_) {
      case Kind::linear:
        return sum;
      case Kind::poly:
        return std::pow(gamma_ * sum + offset_, degree_);
      case Kind::rbf:
        return std::exp(-gamma_ * sum);
      case Kind::sigmoid:
        return std::tanh(gamma_ * sum + offset_);
    }
    return sum;
  }

 private:
  enum class Kind { linear, poly, rbf, sigmoid };
  Kind kind_ = Kind::linear;
  double gamma_ = 0, offset_ = 0, degree_ = 0;
};

void require_count(const ReferenceContext& context, const char* name, size_t found, size_t wanted) {
  if (found == wanted) return;
  context.fail(std::string("attribute '") + name + "' has " + std::to_string(found) + " elements, expected " +
               std::to_string(wanted));
}

// ---- SVMRegressor

void infer_regressor(InferContext& context) {
  post_transform_of(context.node);
  const Kernel checked(context.node);
  context.set_output(0, scores_type(context, DType::f32, {1, ""}));
}

void run_regressor(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const RowShape shape = row_shape(context, context.inputs[0]);
  const auto columns = static_cast<size_t>(shape.columns);
  const int64_t supports = attributes.get_int("n_supports", 0);
  const std::vector<float> coefficients = attributes.get_floats("coefficients"), rho = attributes.get_floats("rho");
  std::vector<float> vectors = attributes.get_floats("support_vectors");
  if (supports < 0) context.fail("attribute n_supports is " + std::to_string(supports));
  if (rho.empty()) context.fail("attribute 'rho' is missing");
  const auto count = static_cast<size_t>(supports);
  require_count(context, "coefficients", coefficients.size(), count > 0 ? count : columns);
  if (count > 0) require_count(context, "support_vectors", vectors.size(), checked_multiply(count, columns));
  const Kernel kernel(context.node);
  const PostTransform transform = post_transform_of(context.node);
  const bool is_one_class = attributes.get_int("one_class", 0) != 0;
  const std::vector<double> input = reals_of(context.inputs[0]);
  std::vector<double> all;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const double* features = input.data() + row * shape.columns;
    double sum = rho[0];
    for (size_t j = 0; j < count; ++j) {
      sum += coefficients[j] * kernel(features, vectors.data() + j * columns, shape.columns);
    }
    for (size_t i = 0; count == 0 && i < columns; ++i) sum += features[i] * coefficients[i];
    std::vector<double> score{is_one_class ? (sum > 0 ? 1. : -1.) : sum};
    transform_scores(transform, SecondScore::absent, score);
    all.push_back(score[0]);
  }
  context.outputs[0] = tensor_of_reals(context, DType::f32, {shape.rows, 1}, all);
}

// ---- SVMClassifier

ClassLabels labels_of_node(const Node& node) { return class_labels(node, "classlabels_ints", "classlabels_strings"); }

// Wu, Lin, Weng, "Probability estimates for multi-class classification by pairwise coupling": libsvm's iteration.
std::vector<double> coupled(const std::vector<double>& pairs, size_t classes) {
  std::vector<double> q(classes * classes, 0), qp(classes), p(classes, 1. / static_cast<double>(classes));
  for (size_t t = 0; t < classes; ++t) {
    for (size_t j = 0; j < classes; ++j) {
      if (j == t) continue;
      q[t * classes + t] += pairs[j * classes + t] * pairs[j * classes + t];
      q[t * classes + j] = -pairs[j * classes + t] * pairs[t * classes + j];
    }
  }
  const double small = 0.005 / static_cast<double>(classes);
  for (size_t round = 0; round < std::max<size_t>(100, classes); ++round) {
    double pqp = 0, error = 0;
    for (size_t t = 0; t < classes; ++t) {
      qp[t] = 0;
      for (size_t j = 0; j < classes; ++j) qp[t] += q[t * classes + j] * p[j];
      pqp += p[t] * qp[t];
    }
    for (size_t t = 0; t < classes; ++t) error = std::max(error, std::abs(qp[t] - pqp));
    if (error < small) break;
    for (size_t t = 0; t < classes; ++t) {
      const double step = (pqp - qp[t]) / q[t * classes + t];
      p[t] += step;
      pqp = (pqp + step * (step * q[t * classes + t] + 2 * qp[t])) / ((1 + step) * (1 + step));
      for (size_t j = 0; j < classes; ++j) {
        qp[j] = (qp[j] + step * q[t * classes + j]) / (1 + step);
        p[j] /= 1 + step;
      }
    }
  }
  return p;
}

class Classifier {
 public:
  Classifier(const ReferenceContext& context, int64_t features)
      : kernel_(context.node),
        labels_(labels_of_node(context.node)),
        transform_(post_transform_of(context.node)),
        features_(static_cast<size_t>(features)),
        classes_(std::max<size_t>(labels_.size(), 1)),
        coefficients_(context.node.attributes.get_floats("coefficients")),
        vectors_(context.node.attributes.get_floats("support_vectors")),
        rho_(context.node.attributes.get_floats("rho")),
        prob_a_(context.node.attributes.get_floats("prob_a")),
        prob_b_(context.node.attributes.get_floats("prob_b")) {
    if (rho_.empty()) context.fail("attribute 'rho' is missing");
    read_vectors(context);
  }

  // The class of a row; its scores.
  int64_t run(const double* row, std::vector<double>& scores) const {
    std::vector<double> votes;
    scores = is_linear() ? linear_scores(row) : pair_scores(row, votes);
    const bool has_probabilities = !prob_a_.empty() && !is_linear();
    if (has_probabilities) scores = probabilities(scores);
    const std::vector<double>& deciding = votes.empty() ? scores : votes;
    const auto best = std::max_element(deciding.begin(), deciding.end());
    int64_t found = best - deciding.begin();
    SecondScore second = SecondScore::absent;
    if (rho_.size() == 1 && labels_.size() == 2) {
      second = transform_ == PostTransform::none ? SecondScore::negation : SecondScore::complement;
    } else if (rho_.size() == 1) {
      found = *best > 0 ? 1 : 0;
    }
    transform_scores(transform_, second, scores);
    return found;
  }

  ClassLabels labels() const {
    ClassLabels named = labels_;
    if (named.size() == 1 && named.are_texts()) named.texts.insert(named.texts.begin(), "0");
    if (named.size() == 1 && !named.are_texts()) named.integers.insert(named.integers.begin(), 0);
    return named;
  }

 private:
  bool is_linear() const { return begins_.empty(); }

  void read_vectors(const ReferenceContext& context) {
    const std::vector<int64_t> counts = context.node.attributes.get_ints("vectors_per_class");
    size_t total = 0;
    for (const int64_t count : counts) {
      if (count < 0) context.fail("attribute vectors_per_class has " + std::to_string(count));
      begins_.push_back(total);
      total = checked_add(total, static_cast<size_t>(count));
    }
    if (total == 0) begins_.clear();
    if (is_linear()) {
      require_count(context, "coefficients", coefficients_.size(), checked_multiply(classes_, features_));
      return;
    }
    begins_.push_back(total);
    require_count(context, "vectors_per_class", counts.size(), classes_);
    if (classes_ < 2) context.fail("has one class with support vectors");
    require_count(context, "support_vectors", vectors_.size(), checked_multiply(total, features_));
    require_count(context, "coefficients", coefficients_.size(), checked_multiply(total, classes_ - 1));
    const size_t pairs = classes_ * (classes_ - 1) / 2;
    require_count(context, "rho", rho_.size(), pairs);
    if (prob_a_.empty()) return;
    require_count(context, "prob_a", prob_a_.size(), pairs);
    require_count(context, "prob_b", prob_b_.size(), pairs);
  }

  std::vector<double> linear_scores(const double* row) const {
    std::vector<double> scores;
    for (size_t c = 0; c < classes_; ++c) {
      const float* coefficients = coefficients_.data() + c * features_;
      scores.push_back(rho_[0] + kernel_(row, coefficients, static_cast<int64_t>(features_)));
    }
    return scores;
  }

  // One score for each pair of classes, and who wins it.
  std::vector<double> pair_scores(const double* row, std::vector<double>& votes) const {
    const size_t total = begins_.back();
    std::vector<double> kernels(total), scores;
    for (size_t v = 0; v < total; ++v) {
      kernels[v] = kernel_(row, vectors_.data() + v * features_, static_cast<int64_t>(features_));
    }
    votes.assign(classes_, 0);
    const auto weighted = [&](size_t own, size_t coefficients_row) {
      double sum = 0;
      for (size_t v = begins_[own]; v < begins_[own + 1]; ++v) {
        sum += coefficients_[coefficients_row * total + v] * kernels[v];
      }
      return sum;
    };
    for (size_t i = 0; i < classes_; ++i) {
      for (size_t j = i + 1; j < classes_; ++j) {
        const double score = rho_[scores.size()] + weighted(i, j - 1) + weighted(j, i);
        votes[score > 0 ? i : j] += 1;
        scores.push_back(score);
      }
    }
    return scores;
  }

  std::vector<double> probabilities(const std::vector<double>& scores) const {
    constexpr double kLeast = 1e-7;
    std::vector<double> pairs(classes_ * classes_, 0);
    size_t pair = 0;
    for (size_t i = 0; i < classes_; ++i) {
      for (size_t j = i + 1; j < classes_; ++j, ++pair) {
        const double sigmoid = 1 / (1 + std::exp(scores[pair] * prob_a_[pair] + prob_b_[pair]));
        pairs[i * classes_ + j] = std::clamp(sigmoid, kLeast, 1 - kLeast);
        pairs[j * classes_ + i] = 1 - pairs[i * classes_ + j];
      }
    }
    return coupled(pairs, classes_);
  }

  Kernel kernel_;
  ClassLabels labels_;
  PostTransform transform_;
  size_t features_, classes_;
  std::vector<float> coefficients_, vectors_, rho_, prob_a_, prob_b_;
  std::vector<size_t> begins_;  // first support vector of each class, then their number; empty: a linear model
};

void infer_classifier(InferContext& context) {
  post_transform_of(context.node);
  const Kernel checked(context.node);
  context.set_output(0, labels_type(context, labels_of_node(context.node)));
  context.set_output(1, scores_type(context, DType::f32, Dim()));
}

void run_classifier(ReferenceContext& context) {
  const RowShape shape = row_shape(context, context.inputs[0]);
  const Classifier classifier(context, shape.columns);
  const std::vector<double> input = reals_of(context.inputs[0]);
  std::vector<int64_t> classes;
  std::vector<double> all, scores;
  for (int64_t row = 0; row < shape.rows; ++row) {
    classes.push_back(classifier.run(input.data() + row * shape.columns, scores));
    all.insert(all.end(), scores.begin(), scores.end());
  }
  context.outputs[0] = labels_of(classifier.labels(), classes);
  if (context.outputs.size() < 2) return;
  const int64_t columns = shape.rows == 0 ? 0 : static_cast<int64_t>(all.size()) / shape.rows;
  context.outputs[1] = tensor_of_reals(context, DType::f32, {shape.rows, columns}, all);
}

}  // namespace

std::vector<OpDef> ml_svm_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> shared = {
      {"coefficients", Kind::reals},          {"kernel_params", Kind::reals}, {"kernel_type", Kind::string},
      {"post_transform", Kind::string},       {"rho", Kind::reals},           {"support_vectors", Kind::reals},
      {"n_supports", Kind::integer},          {"one_class", Kind::integer},   {"classlabels_ints", Kind::integers},
      {"classlabels_strings", Kind::strings}, {"prob_a", Kind::reals},        {"prob_b", Kind::reals},
      {"vectors_per_class", Kind::integers}};
  return {{.schema = {.name = "SVMRegressor",
                      .domain = "ai.onnx.ml",
                      .attributes = shared,
                      .infer = infer_regressor,
                      .reference = run_regressor}},
          {.schema = {.name = "SVMClassifier",
                      .domain = "ai.onnx.ml",
                      .max_outputs = 2,
                      .attributes = shared,
                      .infer = infer_classifier,
                      .reference = run_classifier}}};
}

}  // namespace lathe::ops
