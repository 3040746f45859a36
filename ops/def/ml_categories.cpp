// The operators of ai.onnx.ml that look elements up: LabelEncoder, CategoryMapper, OneHotEncoder.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "ops/copy/copy_elements.h"
#include "ops/copy/index_check.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

// Elements as keys that are equal where the elements are: a string itself, a number's bytes. NaN equals NaN.
std::string key_of(int64_t number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }
std::string key_of(double number) {
  if (std::isnan(number)) number = NAN;
  if (number == 0) number = 0;  // also -0
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::vector<std::string> keys_of(const Tensor& tensor) {
  std::vector<std::string> keys;
  if (tensor.dtype() == DType::string) {
    keys.assign(tensor.data<std::string>(), tensor.data<std::string>() + tensor.size());
  } else if (is_float(tensor.dtype())) {
    for (const double number : reals_of(tensor)) keys.push_back(key_of(number));
  } else {
    for (const int64_t number : integers_of_any(tensor)) keys.push_back(key_of(number));
  }
  return keys;
}

template <class T>
Tensor list_tensor(const std::vector<T>& elements) {
  return Tensor::from<T>({static_cast<int64_t>(elements.size())}, std::span<const T>(elements));
}

// <prefix>_tensor, _strings, _int64s or _floats; undefined when the node has none of them.
Tensor list_attribute(const Node& node, const std::string& prefix) {
  const Attributes& attributes = node.attributes;
  if (attributes.has(prefix + "_tensor")) return attributes.get_tensor(prefix + "_tensor");
  if (attributes.has(prefix + "_strings")) return list_tensor(attributes.get_strings(prefix + "_strings"));
  if (attributes.has(prefix + "_int64s")) return list_tensor(attributes.get_ints(prefix + "_int64s"));
  if (attributes.has(prefix + "_floats")) return list_tensor(attributes.get_floats(prefix + "_floats"));
  return {};
}

// keys[i] becomes values[i]; anything else becomes `fallback`, one element of the values' type.
struct Lookup {
  Tensor keys, values, fallback;
};

Tensor numbers_up_to(size_t count) {
  std::vector<int64_t> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<int64_t>(i);
  return list_tensor(numbers);
}

Tensor fallback_of(const Node& node, DType dtype) {
  const Attributes& attributes = node.attributes;
  if (attributes.has("default_tensor")) return attributes.get_tensor("default_tensor");
  switch (dtype) {
    case DType::string:
      return Tensor::scalar(attributes.get_string("default_string", "_Unused"));
    case DType::i64:
      return Tensor::scalar(attributes.get_int("default_int64", -1));
    case DType::f32:
      return Tensor::scalar(attributes.get_float("default_float", -0.F));
    default:
      return Tensor(dtype, {});
  }
}

// LabelEncoder 1: strings to their positions, or back.
Lookup positions(const Node& node, const char* classes, DType from) {
  const Tensor texts = list_tensor(node.attributes.get_strings(classes));
  const Tensor numbers = numbers_up_to(static_cast<size_t>(texts.size()));
  return from == DType::string ? Lookup{texts, numbers, fallback_of(node, DType::i64)}
                               : Lookup{numbers, texts, fallback_of(node, DType::string)};
}

template <class Context>
Lookup label_encoder(const Context& context, DType from) {
  const Node& node = context.node;
  if (node.op->since == 1) return positions(node, "classes_strings", from);
  Lookup lookup{list_attribute(node, "keys"), list_attribute(node, "values"), {}};
  if (!lookup.keys.defined() || !lookup.values.defined()) context.fail("has no keys or no values");
  lookup.fallback = fallback_of(node, lookup.values.dtype());
  return lookup;
}

template <class Context>
Lookup category_mapper(const Context& context, DType from) {
  const Tensor texts = list_tensor(context.node.attributes.get_strings("cats_strings"));
  const Tensor numbers = list_tensor(context.node.attributes.get_ints("cats_int64s"));
  return from == DType::string ? Lookup{texts, numbers, fallback_of(context.node, DType::i64)}
                               : Lookup{numbers, texts, fallback_of(context.node, DType::string)};
}

template <class Context>
void check(const Context& context, const Lookup& lookup, DType from) {
  if (lookup.keys.size() != lookup.values.size()) {
    context.fail("has " + std::to_string(lookup.keys.size()) + " keys and " + std::to_string(lookup.values.size()) +
                 " values");
  }
  if (lookup.keys.dtype() != from) {
    context.fail("input 0 is " + std::string(name_of(from)) + ", its keys are " +
                 std::string(name_of(lookup.keys.dtype())));
  }
  if (lookup.fallback.size() != 1 || lookup.fallback.dtype() != lookup.values.dtype()) {
    context.fail("its default is no single " + std::string(name_of(lookup.values.dtype())));
  }
}

template <auto kLookup>
void infer_lookup(InferContext& context) {
  const DType from = context.input(0).dtype;
  const Lookup lookup = kLookup(context, from);
  check(context, lookup, from);
  TensorType type = context.input(0);
  type.dtype = lookup.values.dtype();
  context.set_output(0, std::move(type));
}

template <auto kLookup>
void run_lookup(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const Lookup lookup = kLookup(context, input.dtype());
  check(context, lookup, input.dtype());
  std::unordered_map<std::string, int64_t> places;
  const std::vector<std::string> keys = keys_of(lookup.keys), wanted = keys_of(input);
  for (size_t i = 0; i < keys.size(); ++i) places.emplace(keys[i], static_cast<int64_t>(i));
  Tensor result = make_output(context, lookup.values.dtype(), input.dims());
  const ElementCopy copy(lookup.values.dtype());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto found = places.find(wanted[i]);
    if (found != places.end()) {
      copy(lookup.values, found->second, result, static_cast<int64_t>(i));
    } else {
      copy(lookup.fallback, 0, result, static_cast<int64_t>(i));
    }
  }
  context.outputs[0] = std::move(result);
}

// Places of integer keys among `count`: a table where the keys lie close together, else by hashing.
class PlacesOfIntegers {
 public:
  explicit PlacesOfIntegers(const std::vector<int64_t>& keys) {
    for (size_t i = 0; i < keys.size(); ++i) places_.emplace(keys[i], static_cast<int64_t>(i));
    if (keys.empty()) return;
    const auto [least, most] = std::minmax_element(keys.begin(), keys.end());
    least_ = *least;
    const uint64_t range = static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least);
    if (range >= 8 * keys.size() + 1024) return;
    table_.assign(range + 1, -1);
    for (const auto& [key, place] : places_) table_[static_cast<uint64_t>(key) - static_cast<uint64_t>(least_)] = place;
  }

  // -1: it is none of them.
  int64_t operator()(int64_t key) const {
    if (!table_.empty()) {
      const uint64_t at = static_cast<uint64_t>(key) - static_cast<uint64_t>(least_);
      return at < table_.size() ? table_[at] : -1;
    }
    const auto found = places_.find(key);
    return found == places_.end() ? -1 : found->second;
  }

 private:
  std::unordered_map<int64_t, int64_t> places_;
  std::vector<int64_t> table_;  // by key - least_
  int64_t least_ = 0;
};

// Integers to elements of whole bytes.
template <auto kLookup>
bool lower_lookup(LowerContext& context) {
  const TensorType &type = context.input_type(0), &result = context.output_type(0);
  if (type.dtype != DType::i64 || result.dtype == DType::string || bits_of(result.dtype) < 8) return false;
  const InferContext messages(context.node, {}, {});
  const Lookup lookup = kLookup(messages, type.dtype);
  check(messages, lookup, type.dtype);
  const auto places = std::make_shared<const PlacesOfIntegers>(integers_of_any(lookup.keys));
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const auto count = static_cast<int64_t>(type.storage_bytes() / sizeof(int64_t));
  if (!visit_width(bits_of(result.dtype) / 8, []<class T>() {})) return false;
  Step step{.kernel = "look integers up", .reads = {from}, .writes = {to}};
  step.bytes = static_cast<double>(type.storage_bytes() + result.storage_bytes());
  step.run = [=, width = bits_of(result.dtype) / 8](const StepArgs& args) {
    const auto* keys = args.at<const int64_t>(from);
    visit_width(width, [&]<class T>() {
      const auto *values = static_cast<const T*>(lookup.values.raw()),
                 *other = static_cast<const T*>(lookup.fallback.raw());
      T* out = args.at<T>(to);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = (*places)(keys[i]);
        out[i] = place < 0 ? *other : values[place];
      }
    });
  };
  context.add(std::move(step));
  return true;
}

// ---- OneHotEncoder

template <class Context>
Tensor categories(const Context& context) {
  const Tensor found = list_attribute(context.node, "cats");
  if (!found.defined() || found.size() == 0) context.fail("has no categories");
  return found;
}

void infer_one_hot(InferContext& context) {
  TensorType type = context.input(0);
  if (type.has_rank) type.dims.push_back({categories(context).size(), ""});
  type.dtype = DType::f32;
  context.set_output(0, std::move(type));
}

void run_one_hot(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const Tensor cats = categories(context);
  if ((cats.dtype() == DType::string) != (input.dtype() == DType::string)) {
    context.fail("input 0 is " + std::string(name_of(input.dtype())) + ", its categories are " +
                 std::string(name_of(cats.dtype())));
  }
  std::unordered_map<std::string, int64_t> places;
  const std::vector<std::string> keys = keys_of(cats);
  for (size_t i = 0; i < keys.size(); ++i) places.emplace(keys[i], static_cast<int64_t>(i));
  std::vector<std::string> wanted;
  if (is_float(input.dtype())) {
    for (const double number : reals_of(input)) {
      const bool is_small = std::abs(number) < 0x1p63;
      wanted.push_back(is_small ? key_of(static_cast<int64_t>(number)) : std::string());
    }
  } else {
    wanted = keys_of(input);
  }
  Dims dims = input.dims();
  dims.push_back(cats.size());
  Tensor result = make_output(context, DType::f32, dims);
  const bool takes_unknown = context.node.attributes.get_int("zeros", 1) != 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto found = places.find(wanted[i]);
    if (found == places.end() && !takes_unknown) context.fail("element " + std::to_string(i) + " is of no category");
    if (found == places.end()) continue;
    result.mutable_data<float>()[static_cast<int64_t>(i) * cats.size() + found->second] = 1;
  }
  context.outputs[0] = std::move(result);
}

// Integers among integers, where unknown ones are allowed.
bool lower_one_hot(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const InferContext messages(context.node, {}, {});
  const Tensor cats = categories(messages);
  const bool takes_unknown = context.node.attributes.get_int("zeros", 1) != 0;
  if (type.dtype != DType::i64 || cats.dtype() != DType::i64 || !takes_unknown) return false;
  const auto places = std::make_shared<const PlacesOfIntegers>(integers_of_any(cats));
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const auto count = static_cast<int64_t>(type.storage_bytes() / sizeof(int64_t));
  Step step{.kernel = "one hot of categories", .reads = {from}, .writes = {to}};
  step.bytes = static_cast<double>(context.output_type(0).storage_bytes());
  step.run = [=, width = cats.size()](const StepArgs& args) {
    const auto* keys = args.at<const int64_t>(from);
    auto* out = args.at<float>(to);
    std::fill_n(out, count * width, 0.0F);
    for (int64_t i = 0; i < count; ++i) {
      if (const int64_t place = (*places)(keys[i]); place >= 0) out[i * width + place] = 1;
    }
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> ml_categories_ops() {
  using Kind = AttributeSpec::Kind;
  constexpr auto kEncoder = [](const auto& context, DType from) { return label_encoder(context, from); };
  constexpr auto kMapper = [](const auto& context, DType from) { return category_mapper(context, from); };
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema, LowerFn* lower) {
    schema.domain = "ai.onnx.ml";
    defs.push_back({.schema = std::move(schema), .lower = lower});
  };
  add({.name = "LabelEncoder",
       .until = 1,
       .attributes = {{"classes_strings", Kind::strings},
                      {"default_int64", Kind::integer},
                      {"default_string", Kind::string}},
       .infer = infer_lookup<kEncoder>,
       .reference = run_lookup<kEncoder>},
      lower_lookup<kEncoder>);
  add({.name = "LabelEncoder",
       .since = 2,
       .attributes = {{"default_float", Kind::real},
                      {"default_int64", Kind::integer},
                      {"default_string", Kind::string},
                      {"default_tensor", Kind::tensor},
                      {"keys_floats", Kind::reals},
                      {"keys_int64s", Kind::integers},
                      {"keys_strings", Kind::strings},
                      {"keys_tensor", Kind::tensor},
                      {"values_floats", Kind::reals},
                      {"values_int64s", Kind::integers},
                      {"values_strings", Kind::strings},
                      {"values_tensor", Kind::tensor}},
       .infer = infer_lookup<kEncoder>,
       .reference = run_lookup<kEncoder>},
      lower_lookup<kEncoder>);
  add({.name = "CategoryMapper",
       .attributes = {{"cats_int64s", Kind::integers},
                      {"cats_strings", Kind::strings},
                      {"default_int64", Kind::integer},
                      {"default_string", Kind::string}},
       .infer = infer_lookup<kMapper>,
       .reference = run_lookup<kMapper>},
      lower_lookup<kMapper>);
  add({.name = "OneHotEncoder",
       .attributes = {{"cats_int64s", Kind::integers}, {"cats_strings", Kind::strings}, {"zeros", Kind::integer}},
       .infer = infer_one_hot,
       .reference = run_one_hot},
      lower_one_hot);
  return defs;
}

}  // namespace lathe::ops
