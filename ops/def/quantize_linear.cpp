// QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.
#include <algorithm>
#include <cmath>

#include "ops/int8/dynamic_quantize.h"
#include "ops/numbers.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/number_cast.h"
#include "ops/pointwise/pointwise_lowering.h"

namespace lathe::ops {
namespace {

// Which scale belongs to an element: one for all, one per index of an axis, or one per block along it.
class Granularity {
 public:
  Granularity(const ReferenceContext& context, const Tensor& data, const Tensor& scale) {
    const int rank = data.rank();
    int64_t axis = context.node.attributes.get_int("axis", 1);
    if (axis < 0) axis += rank;
    if (scale.size() == 1 && scale.rank() <= 1) return;
    if (axis < 0 || axis >= rank) context.fail("axis is out of range for rank " + std::to_string(rank));
    const auto at = static_cast<size_t>(axis);
    extent_ = data.dims()[at];
    for (size_t i = at + 1; i < data.dims().size(); ++i) inner_ *= data.dims()[i];
    scales_ = scale.rank() == 1 ? scale.size() : scale.dims()[std::min(at, scale.dims().size() - 1)];
    const bool has_blocks = rank == 1 && scales_ != extent_ && context.node.attributes.get_int("block_size", 0) > 0;
    if (scale.rank() == 1 && !has_blocks) {
      is_per_axis_ = true;
      if (scales_ != extent_)
        context.fail("the scale has " + std::to_string(scales_) + " elements, axis " + std::to_string(axis) + " has " +
                     std::to_string(extent_));
      return;
    }
    is_blocked_ = true;
    check_blocks(context, data, scale, at);
  }

  int64_t operator()(int64_t element) const {
    if (is_per_axis_) return element / inner_ % extent_;
    if (!is_blocked_) return 0;
    const int64_t outer = element / inner_ / extent_, block = element / inner_ % extent_ / block_;
    return (outer * scales_ + block) * inner_ + element % inner_;
  }

 private:
  void check_blocks(const ReferenceContext& context, const Tensor& data, const Tensor& scale, size_t axis) {
    if (scale.rank() != data.rank()) context.fail("the scale's rank is neither 0, 1 nor the input's");
    for (size_t i = 0; i < data.dims().size(); ++i)
      if (i != axis && scale.dims()[i] != data.dims()[i]) context.fail("the blocked scale does not fit the input");
    block_ = context.node.attributes.get_int("block_size", 0);
    if (block_ == 0 && scales_ > 0) block_ = (extent_ + scales_ - 1) / scales_;
    if (block_ <= 0) block_ = 1;
    if ((extent_ + block_ - 1) / block_ != scales_) context.fail("block_size does not fit the scale");
  }

  bool is_per_axis_ = false, is_blocked_ = false;
  int64_t extent_ = 1, inner_ = 1, scales_ = 1, block_ = 1;
};

DType dtype_attribute(const Node& node, const char* name) {
  const int64_t value = node.attributes.get_int(name, 0);
  return value > 0 && value < kDTypeCount ? static_cast<DType>(value) : DType::undefined;
}

template <class Context>
void check_zero_point(const Context& context, const Tensor& zero_point, const Tensor& scale) {
  if (zero_point.defined() && zero_point.size() != scale.size()) context.fail("scale and zero point differ in size");
}

// --- QuantizeLinear --------------------------------------------------------------------------------------------------

DType quantized_dtype(const Node& node, DType zero_point) {
  if (zero_point != DType::undefined) return zero_point;
  const DType wanted = dtype_attribute(node, "output_dtype");
  return wanted != DType::undefined ? wanted : DType::u8;
}

void infer_quantize(InferContext& context) {
  if (!context.has_input(0) || !context.has_input(1)) context.fail("an input is missing");
  TensorType type = context.input(0);
  type.dtype = quantized_dtype(context.node, context.has_input(2) ? context.input(2).dtype : DType::undefined);
  type.layout = {};
  context.set_output(0, std::move(type));
}

void reference_quantize(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  if (!context.has_input(1)) context.fail("the scale is missing");
  const Tensor& scale = context.inputs[1];
  const Tensor zero_point = context.has_input(2) ? spread_elements(context.inputs[2]) : Tensor();
  const DType zero_type = context.has_input(2) ? context.inputs[2].dtype() : DType::undefined;
  const DType to = quantized_dtype(context.node, zero_type);
  check_zero_point(context, zero_point, scale);
  DType precision = dtype_attribute(context.node, "precision");
  if (precision == DType::undefined) precision = scale.dtype();
  const SmallFloatRounding rounding{.saturates = context.node.attributes.get_int("saturate", 1) != 0};
  const Granularity scale_of(context, x, scale);
  const bool is_packed = bits_of(to) < 8;
  Tensor result = make_output(context, is_packed ? DType::u8 : to, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t s = scale_of(i);
    const double quotient =
        rounded_to(precision, rounded_to(precision, number_at(x, x.dtype(), i)) / number_at(scale, scale.dtype(), s));
    const double zero = zero_point.defined() ? number_at(zero_point, zero_type, s) : 0;
    if (is_small_float(to))
      static_cast<uint8_t*>(result.mutable_raw())[i] = to_small_float(to, quotient + zero, rounding);
    else
      store_saturated(result, to, i, std::nearbyint(quotient) + zero);
  }
  context.outputs[0] = is_packed ? pack_elements(result, to) : result;
}

bool is_scalar(const TensorType& type) {
  if (!type.has_rank || type.rank() > 1) return false;
  return type.rank() == 0 || type.dims[0].extent == 1;
}

bool has_input(std::span<const TensorType> inputs, size_t i) {
  return i < inputs.size() && inputs[i].dtype != DType::undefined;
}

bool has_one_scale(std::span<const TensorType> inputs) {
  return inputs.size() >= 2 && is_scalar(inputs[1]) && (!has_input(inputs, 2) || is_scalar(inputs[2]));
}

// Of integers that are float32 numbers, or nearly so, and float32.
bool is_expressible(std::span<const TensorType> inputs, DType real, DType quantized) {
  if (inputs.size() < 2 || real != DType::f32 || inputs[1].dtype != DType::f32) return false;
  return quantized == DType::u8 || quantized == DType::i8 || quantized == DType::u16 || quantized == DType::i16 ||
         quantized == DType::i32;
}

// The arithmetic, whatever scale belongs to an element.
std::optional<Expression> quantization(const Node& node, std::span<const TensorType> inputs) {
  const DType to = quantized_dtype(node, has_input(inputs, 2) ? inputs[2].dtype : DType::undefined);
  if (to == DType::i32 || !is_expressible(inputs, inputs[0].dtype, to)) return std::nullopt;
  if (const DType precision = dtype_attribute(node, "precision");
      precision != DType::undefined && precision != DType::f32)
    return std::nullopt;
  ExpressionWriter w(inputs);
  const int x = w.x(0);
  const int rounded = w.op(ExprOp::round_even, w.op(ExprOp::div, x, w.x(1)));
  if (has_input(inputs, 2)) w.add(rounded, w.x(2));
  return w.finish(to);
}

// One scale for all; those of an axis do not broadcast as in NumPy.
std::optional<Expression> express_quantize(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  return has_one_scale(inputs) ? quantization(node, inputs) : std::nullopt;
}

// Extents of the data and of its scales under which they broadcast as in NumPy.
struct Broadcast {
  Dims data, scales;
};

// One scale for each index of an axis, or for each block of them: the axes before it are one, those behind it are.
std::optional<Broadcast> broadcast_of(const Node& node, const Dims& data, const Dims& scales) {
  const auto rank = static_cast<int64_t>(data.size());
  int64_t axis = node.attributes.get_int("axis", 1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return std::nullopt;
  const auto at = static_cast<size_t>(axis);
  const AxisSplit split = split_at(data, axis);
  if (scales == Dims{split.extent}) return Broadcast{{split.outer, split.extent, split.inner}, {split.extent, 1}};
  Dims rows = data;
  if (scales.size() != data.size() || scales[at] <= 0 || split.extent % scales[at] != 0) return std::nullopt;
  rows[at] = scales[at];
  const int64_t block = split.extent / scales[at], wanted = node.attributes.get_int("block_size", 0);
  if (scales != rows || (wanted != block && (wanted != 0 || data.size() == 1))) return std::nullopt;
  return Broadcast{{split.outer, scales[at], block, split.inner}, {split.outer, scales[at], 1, split.inner}};
}

using ExpressionOf = std::optional<Expression>(const Node&, std::span<const TensorType>);
bool lower_by_axis(LowerContext& context, ExpressionOf* expression_of) {
  std::vector<TensorType> types;
  for (int i = 0; i < context.input_count(); ++i) {
    types.push_back(context.has_input(i) ? context.input_type(i) : TensorType());
  }
  if (types.size() < 2) return false;
  const Dims scales = types[1].extents();
  const std::optional<Broadcast> broadcast = broadcast_of(context.node, types[0].extents(), scales);
  if (!broadcast || (has_input(types, 2) && types[2].extents() != scales)) return false;
  const auto expression = expression_of(context.node, types);
  if (!expression) return false;
  for (size_t i = 0; i < types.size(); ++i)
    types[i] = TensorType::of(types[i].dtype, i == 0 ? broadcast->data : broadcast->scales);
  return lower_as_expression(context, *expression, types, TensorType::of(expression->output, broadcast->data));
}

bool lower_quantize(LowerContext& context) { return lower_pointwise(context) || lower_by_axis(context, quantization); }

// --- DequantizeLinear ------------------------------------------------------------------------------------------------

void infer_dequantize(InferContext& context) {
  if (!context.has_input(0) || !context.has_input(1)) context.fail("an input is missing");
  TensorType type = context.input(0);
  const DType wanted = dtype_attribute(context.node, "output_dtype");
  type.dtype = wanted != DType::undefined ? wanted : context.input(1).dtype;
  type.layout = {};
  context.set_output(0, std::move(type));
}

void reference_dequantize(ReferenceContext& context) {
  if (!context.has_input(1)) context.fail("the scale is missing");
  const DType from = context.inputs[0].dtype();
  const Tensor x = spread_elements(context.inputs[0]);
  const Tensor& scale = context.inputs[1];
  const Tensor zero_point = context.has_input(2) ? spread_elements(context.inputs[2]) : Tensor();
  check_zero_point(context, zero_point, scale);
  const DType zero_type = context.has_input(2) ? context.inputs[2].dtype() : DType::undefined;
  const DType wanted = dtype_attribute(context.node, "output_dtype");
  Tensor result = make_output(context, wanted != DType::undefined ? wanted : scale.dtype(), x.dims());
  const Granularity scale_of(context, x, scale);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t s = scale_of(i);
    const double zero = zero_point.defined() ? number_at(zero_point, zero_type, s) : 0;
    store_real(result, i, (number_at(x, from, i) - zero) * number_at(scale, scale.dtype(), s));
  }
  context.outputs[0] = std::move(result);
}

std::optional<Expression> dequantization(const Node& node, std::span<const TensorType> inputs) {
  const DType wanted = dtype_attribute(node, "output_dtype");
  const DType real = wanted != DType::undefined ? wanted : (inputs.size() > 1 ? inputs[1].dtype : DType::undefined);
  if (!is_expressible(inputs, real, inputs[0].dtype)) return std::nullopt;
  ExpressionWriter w(inputs);
  int value = w.x(0);
  if (has_input(inputs, 2)) value = w.sub(value, w.x(2));
  w.mul(value, w.x(1));
  return w.finish();
}

std::optional<Expression> express_dequantize(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  return has_one_scale(inputs) ? dequantization(node, inputs) : std::nullopt;
}

bool lower_dequantize(LowerContext& context) {
  return lower_pointwise(context) || lower_by_axis(context, dequantization);
}

// --- DynamicQuantizeLinear -------------------------------------------------------------------------------------------

void infer_dynamic(InferContext& context) {
  if (!context.has_input(0)) context.fail("input 0 is missing");
  if (context.input(0).dtype != DType::f32) context.fail("the input is not float32");
  TensorType type = context.input(0);
  type.dtype = DType::u8;
  type.layout = {};
  context.set_output(0, std::move(type));
  context.set_output(1, TensorType::of(DType::f32, {}));
  context.set_output(2, TensorType::of(DType::u8, {}));
}

void reference_dynamic(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const auto* in = x.data<float>();
  float low = 0, high = 0;  // the range holds 0
  for (int64_t i = 0; i < x.size(); ++i) {
    low = std::min(low, in[i]);
    high = std::max(high, in[i]);
  }
  const float scale = high == low ? 1.0F : (high - low) / 255.0F;
  const float zero_point = std::nearbyint(std::clamp(-low / scale, 0.0F, 255.0F));
  Tensor result = make_output(context, DType::u8, x.dims());
  for (int64_t i = 0; i < x.size(); ++i)
    store_saturated(result, DType::u8, i, std::nearbyint(in[i] / scale) + zero_point);
  context.outputs[0] = std::move(result);
  if (context.outputs.size() > 1) context.outputs[1] = Tensor::scalar(scale);
  if (context.outputs.size() > 2) context.outputs[2] = Tensor::scalar(static_cast<uint8_t>(zero_point));
}

}  // namespace

std::vector<OpDef> quantize_linear_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> attributes = {{"axis", Kind::integer},
                                                 {"saturate", Kind::integer},
                                                 {"block_size", Kind::integer},
                                                 {"output_dtype", Kind::integer},
                                                 {"precision", Kind::integer}};
  return {{.schema = {.name = "QuantizeLinear",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .attributes = attributes,
                      .infer = infer_quantize,
                      .reference = reference_quantize,
                      .express = express_quantize,
                      .layout = LayoutRole::any_same},
           .lower = lower_quantize},
          {.schema = {.name = "DequantizeLinear",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .attributes = attributes,
                      .infer = infer_dequantize,
                      .reference = reference_dequantize,
                      .express = express_dequantize,
                      .layout = LayoutRole::any_same},
           .lower = lower_dequantize},
          {.schema = {.name = "DynamicQuantizeLinear",
                      .since = 11,
                      .min_outputs = 1,
                      .max_outputs = 3,
                      .infer = infer_dynamic,
                      .reference = reference_dynamic,
                      .layout = LayoutRole::any_same},
           .lower = lower_dynamic_quantize}};
}

}  // namespace lathe::ops
