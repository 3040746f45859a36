#pragma once
// What the classifiers and regressors of ai.onnx.ml share: class labels and the transforms of scores.
#include <string>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

enum class PostTransform { none, softmax, logistic, softmax_zero, probit };

// Attribute post_transform. Throws Error(invalid_model) on another name.
PostTransform post_transform_of(const Node& node);

// How two scores are made from the one score of a binary classifier, before the transform.
enum class SecondScore { absent, complement, negation };
// Transforms one row of scores. A row of one score and a second one wanted becomes a row of two. Where the ONNX text is
// silent this is what ONNX Runtime does: of single scores only PROBIT is taken, of those made into two only LOGISTIC.
void transform_scores(PostTransform transform, SecondScore second, std::vector<double>& scores);
// The same where nothing may be allocated. `scores` has room for two; returns how many there are now.
size_t transform_scores(PostTransform transform, SecondScore second, double* scores, size_t count);

// The labels of a classifier: integers or strings.
struct ClassLabels {
  std::vector<int64_t> integers;
  std::vector<std::string> texts;
  bool are_texts() const { return !texts.empty(); }
  size_t size() const { return are_texts() ? texts.size() : integers.size(); }
  DType dtype() const { return are_texts() ? DType::string : DType::i64; }
};
// Throws Error(invalid_model) when the node has both kinds of labels.
ClassLabels class_labels(const Node& node, const char* integers, const char* texts);
// One label per element of `classes`. Without labels the class number itself. Requires: every class < labels.size().
Tensor labels_of(const ClassLabels& labels, const std::vector<int64_t>& classes);

// Rows and columns of an input of rank 1 (one row) or 2. Calls context.fail() on another rank.
struct RowShape {
  int64_t rows, columns;
};
RowShape row_shape(const ReferenceContext& context, const Tensor& input);
// Type [rows, columns], rows as far as they are known from input 0.
TensorType scores_type(const InferContext& context, DType dtype, Dim columns);
TensorType labels_type(const InferContext& context, const ClassLabels& labels);

// Elements of a list attribute, or of its sibling "<name>_as_tensor".
std::vector<double> reals_attribute(const Node& node, const std::string& name);

}  // namespace lathe
