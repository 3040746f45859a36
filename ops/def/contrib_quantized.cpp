// com.microsoft's operators between quantized tensors: what they do lies between DequantizeLinear and QuantizeLinear.
#include <cstring>

#include "ops/expansion.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// Inputs of both: a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point.
// In units of y: where scales are equal or one twice the other (1 + erf, as GELU is exported), half of all sums are
// ties, which only ratios keep ones.
bool expand_add(ExpandContext& context) {
  require_inputs(context, {1, 3, 4, 6});
  const auto in_units_of_y = [&](int first) {
    const ValueId ratio = context.add("Div", {context.input(first + 1), context.input(6)});
    return add_dequantized(context, context.input(first), ratio, context.input(first + 2));
  };
  const ValueId a = in_units_of_y(0), b = in_units_of_y(3);
  const ValueId y = context.add("Add", {a, b}), one = add_scalar(context, context.input_type(1).dtype, 1);
  context.set_output(0, add_quantized(context, y, one, context.input(7), context.input_type(0).dtype));
  return true;
}

// The scales meet before the product does: masks have scales that make an operand infinite, and 0 times that NaN.
bool expand_mul(ExpandContext& context) {
  require_inputs(context, {1, 3, 4, 6});
  const ValueId one = add_scalar(context, context.input_type(1).dtype, 1);
  const ValueId a = add_dequantized(context, context.input(0), one, context.input(2));
  const ValueId b = add_dequantized(context, context.input(3), one, context.input(5));
  const ValueId scales = context.add("Mul", {context.input(1), context.input(4)});
  const ValueId scale = context.add("Div", {context.input(6), scales});
  const ValueId y = context.add("Mul", {a, b});
  context.set_output(0, add_quantized(context, y, scale, context.input(7), context.input_type(0).dtype));
  return true;
}

// Inputs of all that follow: x, x_scale, x_zero_point, y_scale, y_zero_point.
ValueId dequantized_input(ExpandContext& context) {
  require_inputs(context, {3});
  return add_dequantized(context, context.input(0), context.input(1), context.input(2));
}

void set_quantized_output(ExpandContext& context, ValueId y) {
  context.set_output(0, add_quantized(context, y, context.input(3), context.input(4), context.input_type(0).dtype));
}

bool expand_sigmoid(ExpandContext& context) {
  set_quantized_output(context, context.add("Sigmoid", {dequantized_input(context)}));
  return true;
}

bool expand_leaky_relu(ExpandContext& context) {
  set_quantized_output(
      context, context.add("LeakyRelu", {dequantized_input(context)}, copied_attributes(context.node, {"alpha"})));
  return true;
}

bool expand_reduce_mean(ExpandContext& context) {
  const std::vector<int64_t> axes = context.node.attributes.get_ints("axes");
  const Dims count{static_cast<int64_t>(axes.size())};
  const ValueId along =
      axes.empty() ? ValueId::none : context.constant(Tensor::from<int64_t>(count, std::span<const int64_t>(axes)));
  set_quantized_output(context, context.add("ReduceMean", {dequantized_input(context), along},
                                            copied_attributes(context.node, {"keepdims"})));
  return true;
}

// Pooling of data whose channels may lie last.
template <const char* Op>
bool expand_pool(ExpandContext& context) {
  const bool is_last = context.node.attributes.get_int("channels_last", 0) != 0;
  const TensorType type = context.input_type(0);
  if (is_last && !type.has_rank) return false;
  ValueId x = dequantized_input(context);
  if (is_last) x = add_channels_first(context, x, type.rank());
  ValueId y = context.add(Op, {x},
                          copied_attributes(context.node, {"auto_pad", "ceil_mode", "count_include_pad", "kernel_shape",
                                                           "pads", "strides"}));
  if (is_last) y = add_channels_last(context, y, type.rank());
  set_quantized_output(context, y);
  return true;
}

constexpr char kAveragePool[] = "AveragePool", kGlobalAveragePool[] = "GlobalAveragePool";

bool expand_softmax(ExpandContext& context) {
  constexpr int64_t kOneAxisSince = 13;
  const bool is_flat = context.node.attributes.get_int("opset", kOneAxisSince) < kOneAxisSince;
  const int64_t axis = context.node.attributes.get_int("axis", -1);  // not 1, as that of the old Softmax
  const TensorType type = context.input_type(0);
  if (is_flat && !type.has_rank) return false;
  const ValueId x = dequantized_input(context);
  ValueId y;
  if (is_flat && axis_within(context, axis, type.rank()) != type.rank() - 1) {
    // Before opset 13 all axes from this one on are one.
    const ValueId rows = context.add("Flatten", {x}, {{"axis", axis}});
    const ValueId softmax = context.add("Softmax", {rows}, {{"axis", int64_t{-1}}});
    y = context.add("Reshape", {softmax, context.add("Shape", {x})});
  } else {
    y = context.add("Softmax", {x}, {{"axis", axis}});
  }
  set_quantized_output(context, y);
  return true;
}

// Inputs: y_scale, y_zero_point, then x, scale, zero point of each part.
bool expand_concat(ExpandContext& context) {
  const size_t inputs = context.node.inputs.size();
  if (inputs < 5 || inputs % 3 != 2) context.fail("has " + std::to_string(inputs) + " inputs, expected 2 + 3 a part");
  const DType dtype = context.input_type(2).dtype;
  const auto is_same = [&](int a, int b) {
    if (context.input(a) == context.input(b)) return true;
    const Tensor x = context.constant_of(context.input(a)), y = context.constant_of(context.input(b));
    return x.defined() && y.defined() && x.dtype() == y.dtype() && x.size() == 1 && y.size() == 1 &&
           std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
  };
  for (int i = 0; i < static_cast<int>(inputs); ++i) {
    if (i < 2 || i % 3 != 1) require_inputs(context, {i});
  }
  std::vector<ValueId> parts;
  for (int i = 2; i < static_cast<int>(inputs); i += 3) {
    ValueId part = context.input(i);
    if (!is_same(0, i + 1) || !is_same(1, i + 2)) {
      const ValueId real = add_dequantized(context, part, context.input(i + 1), context.input(i + 2));
      part = add_quantized(context, real, context.input(0), context.input(1), dtype);
    }
    parts.push_back(part);
  }
  context.set_output(0, context.add("Concat", parts, copied_attributes(context.node, {"axis"})));
  return true;
}

void infer_concat(InferContext& context) {
  infer_by_expansion(context);
  if (context.output_count() == 0 || !context.has_input(2)) return;
  if (TensorType type = context.outputs()[0]; !type.has_rank) {
    type.dtype = context.input(2).dtype;  // input 0 is a scale
    context.set_output(0, std::move(type));
  }
}

// Inputs: condition, x, x_scale, x_zero_point, y, y_scale, y_zero_point, z_scale, z_zero_point.
bool expand_where(ExpandContext& context) {
  require_inputs(context, {1, 2, 4, 5, 7});
  const ValueId x = add_dequantized(context, context.input(1), context.input(2), context.input(3));
  const ValueId y = add_dequantized(context, context.input(4), context.input(5), context.input(6));
  const ValueId z = context.add("Where", {context.input(0), x, y});
  context.set_output(0, add_quantized(context, z, context.input(7), context.input(8), context.input_type(1).dtype));
  return true;
}

// QuantizeLinear and DequantizeLinear came to com.microsoft first for types that ai.onnx has by now too.
template <const char* Op>
bool expand_as_standard(ExpandContext& context) {
  context.set_output(0, context.add(Op, context.node.inputs, copied_attributes(context.node, {"axis", "block_size"})));
  return true;
}

constexpr char kQuantize[] = "QuantizeLinear", kDequantize[] = "DequantizeLinear";

}  // namespace

std::vector<OpDef> contrib_quantized_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> window = {
      {"auto_pad", Kind::string},           {"ceil_mode", Kind::integer},           {"channels_last", Kind::integer},
      {"count_include_pad", Kind::integer}, {"kernel_shape", Kind::integers, true}, {"pads", Kind::integers},
      {"strides", Kind::integers}};
  const std::vector<AttributeSpec> axis = {{"axis", Kind::integer}, {"block_size", Kind::integer}};
  OpDef concat = composite("QLinearConcat", 3, -1, expand_concat, {{"axis", Kind::integer, true}});
  concat.schema.infer = infer_concat;
  return {
      composite("QLinearAdd", 2, 8, expand_add),
      composite("QLinearMul", 2, 8, expand_mul),
      composite("QLinearSigmoid", 2, 5, expand_sigmoid),
      composite("QLinearLeakyRelu", 2, 5, expand_leaky_relu, {{"alpha", Kind::real}}),
      composite("QLinearReduceMean", 2, 5, expand_reduce_mean, {{"axes", Kind::integers}, {"keepdims", Kind::integer}}),
      composite("QLinearAveragePool", 2, 5, expand_pool<kAveragePool>, window),
      composite("QLinearGlobalAveragePool", 2, 5, expand_pool<kGlobalAveragePool>, {{"channels_last", Kind::integer}}),
      composite("QLinearSoftmax", 2, 5, expand_softmax, {{"axis", Kind::integer}, {"opset", Kind::integer}}),
      std::move(concat),
      composite("QLinearWhere", 1, 9, expand_where),
      composite("QuantizeLinear", 2, 3, expand_as_standard<kQuantize>, axis),
      composite("DequantizeLinear", 2, 3, expand_as_standard<kDequantize>, axis)};
}

}  // namespace lathe::ops
