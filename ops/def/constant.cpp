// Operators whose result is made of attributes and shapes: Constant, ConstantOfShape, Shape, Size; and Dropout.
#include <algorithm>
#include <cstring>
#include <random>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

// ---- Constant

template <class Context>
Tensor constant_value(const Context& context) {
  const Attributes& attributes = context.node.attributes;
  const auto vector = [](const auto& elements) {
    using T = typename std::decay_t<decltype(elements)>::value_type;
    return Tensor::from<T>({static_cast<int64_t>(elements.size())}, std::span<const T>(elements));
  };
  if (attributes.has("value")) return attributes.get_tensor("value");
  if (attributes.has("value_float")) return Tensor::scalar<float>(attributes.get_float("value_float", 0));
  if (attributes.has("value_int")) return Tensor::scalar<int64_t>(attributes.get_int("value_int", 0));
  if (attributes.has("value_string")) return Tensor::scalar<std::string>(attributes.get_string("value_string", ""));
  if (attributes.has("value_floats")) return vector(attributes.get_floats("value_floats"));
  if (attributes.has("value_ints")) return vector(attributes.get_ints("value_ints"));
  if (attributes.has("value_strings")) return vector(attributes.get_strings("value_strings"));
  if (attributes.has("sparse_value")) context.fail("attribute sparse_value is not supported");
  context.fail("no attribute holds its value");
}

void infer_constant(InferContext& context) {
  const Tensor value = constant_value(context);
  context.set_output(0, TensorType::of(value.dtype(), value.dims()));
}
void reference_constant(ReferenceContext& context) { context.outputs[0] = constant_value(context); }

// ---- ConstantOfShape

template <class Context>
Tensor fill_value(const Context& context) {
  const Tensor value = context.node.attributes.get_tensor("value");
  if (!value.defined()) return Tensor::scalar<float>(0);
  if (value.size() != 1) context.fail("attribute value has " + std::to_string(value.size()) + " elements, expected 1");
  return value;
}

void infer_constant_of_shape(InferContext& context) {
  const DType dtype = fill_value(context).dtype();
  const Tensor shape = context.constant(0);
  if (shape.defined()) {
    TensorType type = ranked(dtype, 0);
    for (const int64_t extent : integers_of(context, shape, "input 0 (shape)")) {
      if (extent < 0) context.fail("extent " + std::to_string(extent) + " is negative");
      type.dims.push_back(known_dim(extent));
    }
    return context.set_output(0, std::move(type));
  }
  const TensorType& type = context.input(0);
  if (type.is_static() && type.rank() == 1 && type.dims[0].extent <= 64) {
    return context.set_output(0, ranked(dtype, static_cast<size_t>(type.dims[0].extent)));
  }
  context.set_output(0, TensorType::unranked(dtype));
}

void reference_constant_of_shape(ReferenceContext& context) {
  const Tensor value = fill_value(context);
  const Dims dims = integers_of(context, context.inputs[0], "input 0 (shape)");
  for (const int64_t extent : dims) {
    if (extent < 0) context.fail("extent " + std::to_string(extent) + " is negative");
  }
  if (value.dtype() != DType::string) {
    // A zero of any type is all zero bits: leave such pages untouched.
    const auto* bytes = static_cast<const unsigned char*>(value.raw());
    if (std::all_of(bytes, bytes + value.bytes(), [](unsigned char byte) { return byte == 0; })) {
      context.outputs[0] = make_output(context, value.dtype(), dims);
      return;
    }
  }
  const Tensor from = spread_elements(value);
  Tensor result = make_output(context, from.dtype(), dims);
  const MoveAxis all{result.size(), 0, 1};
  move_elements(from, 0, result, 0, std::span(&all, 1));
  context.outputs[0] = pack_elements(result, value.dtype());
}

bool lower_constant_of_shape(LowerContext& context) {
  const Tensor value = fill_value(InferContext(context.node, {}, {}));
  const TensorType& type = context.output_type(0);
  return add_fill_step(context, type.dtype, context.buffer(context.output(0)), checked_elements(type.extents()),
                       value.raw());
}

// ---- Shape, Size

struct Part {
  int64_t begin, end;
};
Part shape_part(const Node& node, int64_t rank) {
  const auto clamped = [&](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + rank : index, 0, rank); };
  const int64_t begin = clamped(node.attributes.get_int("start", 0));
  const int64_t end = node.attributes.has("end") ? clamped(node.attributes.get_int("end", rank)) : rank;
  return {begin, std::max(begin, end)};
}

void infer_shape(InferContext& context) {
  TensorType type = ranked(DType::i64, 1);
  if (context.input(0).has_rank) {
    const Part part = shape_part(context.node, context.input(0).rank());
    type.dims[0] = known_dim(part.end - part.begin);
  }
  context.set_output(0, std::move(type));
}

void reference_shape(ReferenceContext& context) {
  const Dims& dims = context.inputs[0].dims();
  const Part part = shape_part(context.node, static_cast<int64_t>(dims.size()));
  const Dims taken(dims.begin() + part.begin, dims.begin() + part.end);
  context.outputs[0] = Tensor::from<int64_t>({part.end - part.begin}, std::span<const int64_t>(taken));
}

// The extents are known when this is lowered: write them down.
bool lower_extents(LowerContext& context, const std::vector<int64_t>& values) {
  const BufferId to = context.buffer(context.output(0));
  Step step{.kernel = "extents", .writes = {to}};
  step.run = [to, values](const StepArgs& args) {
    std::memcpy(args.at<void>(to), values.data(), values.size() * sizeof(int64_t));
  };
  context.add(std::move(step));
  return true;
}

bool lower_shape(LowerContext& context) {
  const Dims dims = context.input_type(0).extents();
  const Part part = shape_part(context.node, static_cast<int64_t>(dims.size()));
  return lower_extents(context, Dims(dims.begin() + part.begin, dims.begin() + part.end));
}

void infer_size(InferContext& context) { context.set_output(0, TensorType::of(DType::i64, {})); }
void reference_size(ReferenceContext& context) {
  context.outputs[0] = Tensor::scalar<int64_t>(context.inputs[0].size());
}
bool lower_size(LowerContext& context) {
  return lower_extents(context, {checked_elements(context.input_type(0).extents())});
}

// ---- Dropout

void infer_dropout(InferContext& context) {
  const TensorType& data = context.input(0);
  context.set_output(0, data);
  TensorType mask = data;
  if (context.node.op->since >= 10) mask.dtype = DType::boolean;
  context.set_output(1, std::move(mask));
}

float ratio_of(const ReferenceContext& context) {
  if (!context.has_input(1)) return 0.5f;
  const Tensor& ratio = context.inputs[1];
  if (ratio.size() != 1) context.fail("input 1 (ratio) is not a scalar");
  if (ratio.dtype() == DType::f32) return *ratio.data<float>();
  if (ratio.dtype() == DType::f64) return static_cast<float>(*ratio.data<double>());
  if (ratio.dtype() == DType::f16 && *ratio.data<uint16_t>() == 0) return 0;
  context.fail("input 1 (ratio) is " + std::string(name_of(ratio.dtype())) + ", expected float32 or float64");
}

template <class T>
void drop(ReferenceContext& context, const std::vector<bool>& keep, double scale) {
  const Tensor& data = context.inputs[0];
  Tensor result = make_output(context, data.dtype(), data.dims());
  for (int64_t i = 0; i < data.size(); ++i) {
    const bool kept = keep[static_cast<size_t>(i)];
    result.mutable_data<T>()[i] = kept ? static_cast<T>(data.data<T>()[i] * scale) : T(0);
  }
  context.outputs[0] = result;
}

// The generator of the ONNX reference: numpy's, which is std::mt19937 read as 53-bit fractions.
void train(ReferenceContext& context, float ratio) {
  const Tensor& data = context.inputs[0];
  if (!(ratio >= 0 && ratio < 1)) context.fail("ratio " + std::to_string(ratio) + " is out of [0, 1)");
  std::mt19937 random(static_cast<uint32_t>(context.node.attributes.get_int("seed", 0)));
  std::vector<bool> keep;
  for (int64_t i = 0; i < data.size(); ++i) {
    const uint64_t high = random() >> 5, low = random() >> 6;
    keep.push_back(static_cast<double>(high * 67108864 + low) / 9007199254740992.0 >= static_cast<double>(ratio));
  }
  const double scale = 1.0 / (1.0 - static_cast<double>(ratio));
  if (data.dtype() == DType::f32) {
    drop<float>(context, keep, scale);
  } else if (data.dtype() == DType::f64) {
    drop<double>(context, keep, scale);
  } else {
    context.fail("training on " + std::string(name_of(data.dtype())) + " is not supported");
  }
  if (context.outputs.size() > 1) {
    Tensor mask(DType::boolean, data.dims());
    for (int64_t i = 0; i < data.size(); ++i) mask.mutable_data<uint8_t>()[i] = keep[static_cast<size_t>(i)];
    context.outputs[1] = mask;
  }
}

bool is_training(const ReferenceContext& context) {
  return context.node.op->since >= 12 && context.has_input(2) && context.inputs[2].size() == 1 &&
         *static_cast<const uint8_t*>(context.inputs[2].raw()) != 0;
}

void reference_dropout(ReferenceContext& context) {
  if (is_training(context)) {
    if (const float ratio = ratio_of(context); ratio != 0) return train(context, ratio);
  }
  const Tensor& data = context.inputs[0];
  context.outputs[0] = data;
  if (context.outputs.size() < 2) return;
  Tensor mask(context.node.op->since >= 10 ? DType::boolean : data.dtype(), data.dims());
  const Tensor one = mask.dtype() == DType::f32   ? Tensor::scalar<float>(1)
                     : mask.dtype() == DType::f64 ? Tensor::scalar<double>(1)
                     : mask.dtype() == DType::f16 ? Tensor::view(DType::f16, {}, "\x00\x3c")
                                                  : Tensor::scalar<bool>(true);
  const MoveAxis all{mask.size(), 0, 1};
  if (one.dtype() == mask.dtype()) move_elements(one, 0, mask, 0, std::span(&all, 1));
  context.outputs[1] = mask;
}

bool lower_dropout(LowerContext& context) {
  if (context.has_output(1)) return false;
  if (context.node.op->since >= 12 && context.has_input(2)) {
    const Tensor training = context.constant(2);
    if (!training.defined() || *static_cast<const uint8_t*>(training.raw()) != 0) return false;
  }
  return lower_as_same_bytes(context);
}

}  // namespace

std::vector<OpDef> constant_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs = {
      {.schema = {.name = "Constant",
                  .min_inputs = 0,
                  .max_inputs = 0,
                  .attributes = {{"value", Kind::tensor},
                                 {"value_float", Kind::real},
                                 {"value_floats", Kind::reals},
                                 {"value_int", Kind::integer},
                                 {"value_ints", Kind::integers},
                                 {"value_string", Kind::string},
                                 {"value_strings", Kind::strings},
                                 {"sparse_value", Kind::any}},
                  .infer = infer_constant,
                  .reference = reference_constant}},
      {.schema = {.name = "ConstantOfShape",
                  .since = 9,
                  .attributes = {{"value", Kind::tensor}},
                  .infer = infer_constant_of_shape,
                  .reference = reference_constant_of_shape},
       .lower = lower_constant_of_shape},
      {.schema = {.name = "Shape",
                  .attributes = {{"start", Kind::integer}, {"end", Kind::integer}},
                  .infer = infer_shape,
                  .reference = reference_shape},
       .lower = lower_shape},
      {.schema = {.name = "Size", .infer = infer_size, .reference = reference_size}, .lower = lower_size}};
  const std::vector<AttributeSpec> dropout_attributes = {
      {"ratio", Kind::real}, {"is_test", Kind::integer}, {"consumed_inputs", Kind::integers}, {"seed", Kind::integer}};
  const struct { int since, until, max_inputs; } versions[] = {{1, 9, 1}, {10, 11, 1}, {12, 1 << 20, 3}};
  for (const auto& version : versions) {
    defs.push_back({.schema = {.name = "Dropout",
                               .since = version.since,
                               .until = version.until,
                               .max_inputs = version.max_inputs,
                               .max_outputs = 2,
                               .attributes = dropout_attributes,
                               .infer = infer_dropout,
                               .reference = reference_dropout,
                               .layout = LayoutRole::any_same},
                    .lower = lower_dropout});
  }
  return defs;
}

}  // namespace lathe::ops
