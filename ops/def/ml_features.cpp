// The operators of ai.onnx.ml that prepare features: ArrayFeatureExtractor, Binarizer, FeatureVectorizer, Imputer,
// Normalizer, Scaler.
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/ml/ml_scores.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer_same(InferContext& context) { context.set_output(0, context.input(0)); }

void infer_same_float(InferContext& context) {
  TensorType type = context.input(0);
  type.dtype = DType::f32;
  context.set_output(0, std::move(type));
}

int64_t last_extent(const Tensor& tensor) { return tensor.rank() == 0 ? 1 : tensor.dims().back(); }

// One element, or one per feature.
void require_per_feature(const ReferenceContext& context, const char* name, size_t count, int64_t features) {
  if (count == 1 || static_cast<int64_t>(count) == features) return;
  context.fail(std::string("attribute '") + name + "' has " + std::to_string(count) + " elements for " +
               std::to_string(features) + " features");
}

// ---- Expansions: of float32 only, which is what models have; other types are the references'

// A list that is one for all features or one for each; false: it does not fit, or that cannot be told yet.
bool is_per_feature(const TensorType& type, size_t count) {
  if (!type.has_rank || type.rank() < 1) return false;
  return count == 1 || (type.dims.back().known() && type.dims.back().extent == static_cast<int64_t>(count));
}

ValueId list_constant(ExpandContext& context, const std::vector<float>& list) {
  return context.constant(Tensor::from<float>({static_cast<int64_t>(list.size())}, std::span<const float>(list)));
}

bool expand_scaler(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  const std::vector<float> scale = context.node.attributes.get_floats("scale"),
                           offset = context.node.attributes.get_floats("offset");
  if (type.dtype != DType::f32 || scale.empty() || offset.empty()) return false;
  if (!is_per_feature(type, scale.size()) || !is_per_feature(type, offset.size())) return false;
  const ValueId moved = context.add("Sub", {context.input(0), list_constant(context, offset)});
  context.set_output(0, context.add("Mul", {moved, list_constant(context, scale)}));
  return true;
}

bool expand_binarizer(ExpandContext& context) {
  if (context.input_type(0).dtype != DType::f32) return false;
  const ValueId threshold = add_scalar(context, DType::f32, context.node.attributes.get_float("threshold", 0));
  const ValueId is_above = context.add("Greater", {context.input(0), threshold});
  context.set_output(0, context.add("Cast", {is_above}, {{"to", static_cast<int64_t>(DType::f32)}}));
  return true;
}

bool expand_imputer(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  const std::vector<float> values = context.node.attributes.get_floats("imputed_value_floats");
  if (type.dtype != DType::f32 || values.empty() || !is_per_feature(type, values.size())) return false;
  const float replaced = context.node.attributes.get_float("replaced_value_float", 0);
  const ValueId x = context.input(0);
  const ValueId is_replaced = std::isnan(replaced)
                                  ? context.add("IsNaN", {x})
                                  : context.add("Equal", {x, add_scalar(context, DType::f32, replaced)});
  context.set_output(0, context.add("Where", {is_replaced, list_constant(context, values), x}));
  return true;
}

// A row of zeros stays one.
bool expand_normalizer(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  const std::string norm = context.node.attributes.get_string("norm", "MAX");
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 1 || type.rank() > 2) return false;
  const char* reduction = norm == "L1" ? "ReduceL1" : norm == "L2" ? "ReduceL2" : "ReduceMax";
  const ValueId size = context.add(reduction, {context.input(0), context.longs({-1})});
  const ValueId is_zero = context.add("Equal", {size, add_scalar(context, DType::f32, 0)});
  const ValueId divisor = context.add("Where", {is_zero, add_scalar(context, DType::f32, 1), size});
  context.set_output(0, context.add("Div", {context.input(0), divisor}));
  return true;
}

// ---- ArrayFeatureExtractor

void infer_extractor(InferContext& context) {
  TensorType type = context.input(0).without_shape();
  const TensorType &data = context.input(0), &indices = context.input(1);
  if (data.has_rank && data.rank() > 0) {
    type = data;
    if (data.rank() == 1) type.dims.insert(type.dims.begin(), Dim{1, ""});
    type.dims.back() = Dim();
    if (indices.is_static()) {
      int64_t count = 1;
      for (const Dim& dim : indices.dims) count = __builtin_mul_overflow(count, dim.extent, &count) ? -1 : count;
      type.dims.back().extent = count;
    }
  }
  context.set_output(0, std::move(type));
}

void run_extractor(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  if (data.rank() == 0) context.fail("input 0 is a scalar");
  const std::vector<int64_t> indices = integers_of_any(context.inputs[1]);
  const int64_t features = data.dims().back();
  for (const int64_t index : indices) {
    if (index >= 0 && index < features) continue;
    context.fail("index " + std::to_string(index) + " is out of range for " + std::to_string(features) + " features");
  }
  Dims dims = data.dims();
  if (data.rank() == 1) dims.insert(dims.begin(), 1);
  dims.back() = static_cast<int64_t>(indices.size());
  Tensor result = make_output(context, data.dtype(), dims);
  const ElementCopy copy(data.dtype());
  const auto width = static_cast<int64_t>(indices.size());
  for (int64_t i = 0; i < result.size(); ++i) {
    copy(data, i / width * features + indices[static_cast<size_t>(i % width)], result, i);
  }
  context.outputs[0] = std::move(result);
}

// ---- Binarizer, Scaler, Normalizer

void run_binarizer(ReferenceContext& context) {
  std::vector<double> elements = reals_of(context.inputs[0]);
  const double threshold = context.node.attributes.get_float("threshold", 0);
  for (double& element : elements) element = element > threshold ? 1 : 0;
  context.outputs[0] = tensor_of_reals(context, context.inputs[0].dtype(), context.inputs[0].dims(), elements);
}

void run_scaler(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  std::vector<float> scale = context.node.attributes.get_floats("scale");
  std::vector<float> offset = context.node.attributes.get_floats("offset");
  if (scale.empty()) scale = {1};
  if (offset.empty()) offset = {0};
  require_per_feature(context, "scale", scale.size(), last_extent(input));
  require_per_feature(context, "offset", offset.size(), last_extent(input));
  std::vector<double> elements = reals_of(input);
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = (elements[i] - offset[i % offset.size()]) * scale[i % scale.size()];
  }
  context.outputs[0] = tensor_of_reals(context, DType::f32, input.dims(), elements);
}

enum class Norm { max, l1, l2 };

template <class Context>
Norm norm_of(const Context& context) {
  const std::string name = context.node.attributes.get_string("norm", "MAX");
  if (name == "MAX") return Norm::max;
  if (name == "L1") return Norm::l1;
  if (name != "L2") context.fail("attribute norm is '" + name + "'");
  return Norm::l2;
}

void infer_normalizer(InferContext& context) {
  norm_of(context);
  infer_same_float(context);
}

void run_normalizer(ReferenceContext& context) {
  const RowShape shape = row_shape(context, context.inputs[0]);
  const Norm norm = norm_of(context);
  std::vector<double> elements = reals_of(context.inputs[0]);
  for (int64_t row = 0; row < shape.rows; ++row) {
    double* begin = elements.data() + row * shape.columns;
    double divisor = norm == Norm::max ? -INFINITY : 0;
    for (int64_t i = 0; i < shape.columns; ++i) {
      if (norm == Norm::max) divisor = std::max(divisor, begin[i]);
      if (norm == Norm::l1) divisor += std::abs(begin[i]);
      if (norm == Norm::l2) divisor += begin[i] * begin[i];
    }
    if (norm == Norm::l2) divisor = std::sqrt(divisor);
    if (divisor == 0) continue;
    for (int64_t i = 0; i < shape.columns; ++i) begin[i] /= divisor;
  }
  context.outputs[0] = tensor_of_reals(context, DType::f32, context.inputs[0].dims(), elements);
}

// ---- Imputer

void run_imputer(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const Attributes& attributes = context.node.attributes;
  std::vector<double> values;
  double replaced;
  if (is_float(input.dtype())) {
    const std::vector<float> given = attributes.get_floats("imputed_value_floats");
    values.assign(given.begin(), given.end());
    replaced = attributes.get_float("replaced_value_float", 0);
  } else {
    for (const int64_t value : attributes.get_ints("imputed_value_int64s"))
      values.push_back(static_cast<double>(value));
    replaced = static_cast<double>(attributes.get_int("replaced_value_int64", 0));
  }
  if (values.empty()) context.fail("has no imputed values for " + std::string(name_of(input.dtype())));
  require_per_feature(context, "imputed_value", values.size(), last_extent(input));
  std::vector<double> elements = reals_of(input);
  for (size_t i = 0; i < elements.size(); ++i) {
    const bool is_replaced = std::isnan(replaced) ? std::isnan(elements[i]) : elements[i] == replaced;
    if (is_replaced) elements[i] = values[i % values.size()];
  }
  context.outputs[0] = tensor_of_reals(context, input.dtype(), input.dims(), elements);
}

// ---- FeatureVectorizer

void infer_vectorizer(InferContext& context) {
  int64_t width = 0;
  for (const int64_t part : context.node.attributes.get_ints("inputdimensions")) {
    if (part < 0 || __builtin_add_overflow(width, part, &width)) context.fail("attribute inputdimensions is malformed");
  }
  context.set_output(0, scores_type(context, DType::f32, {width, ""}));
}

// Each input gives as many columns as its attribute says: more are cut off, missing ones are zero.
void run_vectorizer(ReferenceContext& context) {
  const std::vector<int64_t> widths = context.node.attributes.get_ints("inputdimensions");
  if (widths.size() != context.inputs.size()) {
    context.fail("attribute inputdimensions has " + std::to_string(widths.size()) + " elements for " +
                 std::to_string(context.inputs.size()) + " inputs");
  }
  const int64_t rows = row_shape(context, context.inputs[0]).rows;
  int64_t width = 0;
  for (const int64_t part : widths) width += part;
  Tensor result = make_output(context, DType::f32, {rows, width});
  int64_t begin = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    const RowShape shape = row_shape(context, context.inputs[i]);
    if (shape.rows != rows) context.fail("its inputs have different numbers of rows");
    const std::vector<double> elements = reals_of(context.inputs[i]);
    const int64_t kept = std::min(widths[i], shape.columns);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < kept; ++c) {
        result.mutable_data<float>()[row * width + begin + c] =
            static_cast<float>(elements[static_cast<size_t>(row * shape.columns + c)]);
      }
    }
    begin += widths[i];
  }
  context.outputs[0] = std::move(result);
}

}  // namespace

std::vector<OpDef> ml_features_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) {
    schema.domain = "ai.onnx.ml";
    defs.push_back({.schema = std::move(schema)});
  };
  add({.name = "ArrayFeatureExtractor",
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_extractor,
       .reference = run_extractor});
  add({.name = "Binarizer",
       .attributes = {{"threshold", Kind::real}},
       .infer = infer_same,
       .reference = run_binarizer,
       .expand = expand_binarizer});
  add({.name = "FeatureVectorizer",
       .max_inputs = -1,
       .attributes = {{"inputdimensions", Kind::integers}},
       .infer = infer_vectorizer,
       .reference = run_vectorizer});
  add({.name = "Imputer",
       .attributes = {{"imputed_value_floats", Kind::reals},
                      {"imputed_value_int64s", Kind::integers},
                      {"replaced_value_float", Kind::real},
                      {"replaced_value_int64", Kind::integer}},
       .infer = infer_same,
       .reference = run_imputer,
       .expand = expand_imputer});
  add({.name = "Normalizer",
       .attributes = {{"norm", Kind::string}},
       .infer = infer_normalizer,
       .reference = run_normalizer,
       .expand = expand_normalizer});
  add({.name = "Scaler",
       .attributes = {{"offset", Kind::reals}, {"scale", Kind::reals}},
       .infer = infer_same_float,
       .reference = run_scaler,
       .expand = expand_scaler});
  return defs;
}

}  // namespace lathe::ops
