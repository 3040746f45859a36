// The operators of ai.onnx.ml on maps: CastMap, DictVectorizer, ZipMap.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "ops/copy/copy_elements.h"
#include "ops/ml/ml_scores.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "src/base/box.h"

namespace lathe::ops {
namespace {

template <class T>
Tensor list_tensor(const std::vector<T>& elements) {
  return Tensor::from<T>({static_cast<int64_t>(elements.size())}, std::span<const T>(elements));
}

void require_map(const InferContext& context) {
  const TensorType& type = context.input(0);
  const bool is_map = type.is_object() && (!type.container || type.container->kind == ContainerType::Kind::map);
  if (!is_map) context.fail("input 0 is " + to_string(type) + ", expected a map");
}

// ---- CastMap

DType cast_type(const Node& node, bool& is_known) {
  const std::string name = node.attributes.get_string("cast_to", "TO_FLOAT");
  is_known = name == "TO_FLOAT" || name == "TO_STRING" || name == "TO_INT64";
  return name == "TO_STRING" ? DType::string : name == "TO_INT64" ? DType::i64 : DType::f32;
}

template <class Context>
DType cast_type(const Context& context) {
  bool is_known = false;
  const DType dtype = cast_type(context.node, is_known);
  if (!is_known) context.fail("attribute cast_to is '" + context.node.attributes.get_string("cast_to", "") + "'");
  return dtype;
}

void infer_cast(InferContext& context) {
  require_map(context);
  context.set_output(0, {cast_type(context), true, {{1, ""}, {}}, {}});
}

double number_in(const ReferenceContext& context, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data()) context.fail("'" + text + "' is no number");
  return number;
}

void store_cast(const ReferenceContext& context, const Tensor& values, int64_t from, Tensor& result, int64_t to) {
  if (values.dtype() == DType::string) {
    const std::string& text = values.data<std::string>()[from];
    if (result.dtype() == DType::string) {
      result.mutable_data<std::string>()[to] = text;
    } else {
      const double number = number_in(context, text);
      if (!std::isfinite(number) && result.dtype() == DType::i64) context.fail("'" + text + "' is no integer");
      store_real(result, to, number);
    }
    return;
  }
  const double number = values.dtype() == DType::f32 ? values.data<float>()[from] : values.data<double>()[from];
  if (result.dtype() == DType::string) {
    result.mutable_data<std::string>()[to] = std::to_string(number);
  } else {
    if (!std::isfinite(number) && result.dtype() == DType::i64) context.fail("a value is no integer");
    store_real(result, to, number);
  }
}

// DENSE: the values in the order of their keys. SPARSE: each at its key's place in a row of max_map.
void run_cast(ReferenceContext& context) {
  const AnyValue value = unbox(context.inputs[0]);
  const Map& map = value.pairs();
  if (map.keys.dtype() != DType::i64) context.fail("the keys are " + std::string(name_of(map.keys.dtype())));
  const bool is_dense = context.node.attributes.get_string("map_form", "DENSE") == "DENSE";
  const int64_t width = is_dense ? map.keys.size() : context.node.attributes.get_int("max_map", 1);
  if (width < 0) context.fail("attribute max_map is " + std::to_string(width));
  std::map<int64_t, int64_t> sorted;
  for (int64_t i = 0; i < map.keys.size(); ++i) sorted.emplace(map.keys.data<int64_t>()[i], i);
  Tensor result = make_output(context, cast_type(context), {1, width});
  int64_t place = 0;
  for (const auto& [key, from] : sorted) {
    const int64_t to = is_dense ? place++ : key;
    if (to < 0 || to >= width) context.fail("key " + std::to_string(key) + " is out of range");
    store_cast(context, map.values, from, result, to);
  }
  context.outputs[0] = std::move(result);
}

// ---- DictVectorizer

void infer_dictionary(InferContext& context) {
  require_map(context);
  const auto texts = context.node.attributes.get_strings("string_vocabulary");
  const auto integers = context.node.attributes.get_ints("int64_vocabulary");
  const TensorType& type = context.input(0);
  const DType dtype = type.container ? type.container->element.dtype : DType::undefined;
  const auto width = static_cast<int64_t>(texts.empty() ? integers.size() : texts.size());
  context.set_output(0, {dtype, true, {{1, ""}, {width, ""}}, {}});
}

template <class Key>
void place_values(const std::vector<Key>& vocabulary, const Map& map, Tensor& result) {
  std::map<Key, int64_t> places;
  for (size_t i = 0; i < vocabulary.size(); ++i) places.emplace(vocabulary[i], static_cast<int64_t>(i));
  const ElementCopy copy(map.values.dtype());
  for (int64_t i = 0; i < map.keys.size(); ++i) {
    const auto found = places.find(map.keys.data<Key>()[i]);
    if (found != places.end()) copy(map.values, i, result, found->second);
  }
}

void run_dictionary(ReferenceContext& context) {
  const AnyValue value = unbox(context.inputs[0]);
  const Map& map = value.pairs();
  const auto texts = context.node.attributes.get_strings("string_vocabulary");
  const auto integers = context.node.attributes.get_ints("int64_vocabulary");
  if (map.keys.dtype() == DType::string) {
    context.outputs[0] = make_output(context, map.values.dtype(), {1, static_cast<int64_t>(texts.size())});
    place_values(texts, map, context.outputs[0]);
  } else {
    context.outputs[0] = make_output(context, map.values.dtype(), {1, static_cast<int64_t>(integers.size())});
    place_values(integers, map, context.outputs[0]);
  }
}

// ---- ZipMap

ClassLabels zip_labels(const Node& node) { return class_labels(node, "classlabels_int64s", "classlabels_strings"); }

void infer_zip(InferContext& context) {
  const ClassLabels labels = zip_labels(context.node);
  if (labels.size() == 0) context.fail("has no labels");
  const TensorType element = TensorType::of(context.input(0).dtype, {});
  context.set_output(0, TensorType::sequence_of(TensorType::map_of(labels.dtype(), element)));
}

void run_zip(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const RowShape shape = row_shape(context, input);
  const ClassLabels labels = zip_labels(context.node);
  if (static_cast<int64_t>(labels.size()) != shape.columns) {
    context.fail("has " + std::to_string(labels.size()) + " labels for " + std::to_string(shape.columns) + " columns");
  }
  const Tensor keys = labels.are_texts() ? list_tensor(labels.texts) : list_tensor(labels.integers);
  const ElementCopy copy(input.dtype());
  std::vector<AnyValue> rows;
  for (int64_t row = 0; row < shape.rows; ++row) {
    Tensor values = make_output(context, input.dtype(), {shape.columns});
    copy(input, row * shape.columns, values, 0, shape.columns);
    rows.push_back(AnyValue::map(keys, std::move(values)));
  }
  context.outputs[0] = box(AnyValue::sequence(std::move(rows)));
}

}  // namespace

std::vector<OpDef> ml_maps_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) {
    schema.domain = "ai.onnx.ml";
    defs.push_back({.schema = std::move(schema)});
  };
  add({.name = "CastMap",
       .attributes = {{"cast_to", Kind::string}, {"map_form", Kind::string}, {"max_map", Kind::integer}},
       .infer = infer_cast,
       .reference = run_cast,
       .takes_objects = true});
  add({.name = "DictVectorizer",
       .attributes = {{"int64_vocabulary", Kind::integers}, {"string_vocabulary", Kind::strings}},
       .infer = infer_dictionary,
       .reference = run_dictionary,
       .takes_objects = true});
  add({.name = "ZipMap",
       .attributes = {{"classlabels_int64s", Kind::integers}, {"classlabels_strings", Kind::strings}},
       .infer = infer_zip,
       .reference = run_zip});
  return defs;
}

}  // namespace lathe::ops
