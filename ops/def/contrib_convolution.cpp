// com.microsoft's convolutions and pooling: with an activation or a sum fused, and channels last.
#include "ops/conv/conv_node.h"
#include "ops/expansion.h"

namespace lathe::ops {
namespace {

Attributes window_attributes(const Node& node) {
  return copied_attributes(node, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"});
}

// Inputs: X, W, B, Z (added to the result before the activation).
bool expand_fused_conv(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  ValueId y =
      context.add("Conv", {context.input(0), context.input(1), context.input(2)}, window_attributes(context.node));
  if (context.has_input(3)) y = context.add("Add", {y, context.input(3)});
  y = add_activation(context, y, attributes.get_string("activation", ""), attributes.get_floats("activation_params"));
  context.set_output(0, y);
  return true;
}

// The same on [N, spatial..., C]; the weights are in their usual order.
bool expand_nhwc_conv(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank) return false;
  const int rank = type.rank();
  const Attributes& attributes = context.node.attributes;
  const ValueId x = add_channels_first(context, context.input(0), rank);
  ValueId y = context.add("Conv", {x, context.input(1), context.input(2)}, window_attributes(context.node));
  if (context.has_input(3)) y = context.add("Add", {y, add_channels_first(context, context.input(3), rank)});
  y = add_activation(context, y, attributes.get_string("activation", ""), attributes.get_floats("activation_params"));
  context.set_output(0, add_channels_last(context, y, rank));
  return true;
}

bool expand_nhwc_max_pool(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank) return false;
  const int rank = type.rank();
  const ValueId x = add_channels_first(context, context.input(0), rank);
  const ValueId y = context.add(
      "MaxPool", {x},
      copied_attributes(context.node, {"auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"}));
  context.set_output(0, add_channels_last(context, y, rank));
  return true;
}

// Inputs as QLinearConv of ai.onnx; `channels_last` concerns data only, not weights.
bool expand_qlinear_conv(ExpandContext& context) {
  std::vector<ValueId> inputs = context.node.inputs;
  const bool is_last = context.node.attributes.get_int("channels_last", 0) != 0;
  const TensorType type = context.input_type(0);
  if (is_last && !type.has_rank) return false;
  if (is_last) inputs[0] = add_channels_first(context, inputs[0], type.rank());
  const ValueId y = context.add("QLinearConv", std::move(inputs), window_attributes(context.node));
  context.set_output(0, is_last ? add_channels_last(context, y, type.rank()) : y);
  return true;
}

// ---- GroupNorm: inputs X, gamma, beta; SkipGroupNorm adds skip and bias to X first and can give that sum.

ValueId with_skip(ExpandContext& context, bool is_last) {
  ValueId sum = context.input(0);
  if (context.has_input(3)) {
    ValueId skip = context.input(3);
    // [N, C] stands for one row of channels for every pixel.
    if (context.type(skip).rank() == 2) {
      skip = context.add("Unsqueeze", {skip, is_last ? context.longs({1, 2}) : context.longs({2, 3})});
    }
    sum = context.add("Add", {sum, skip});
  }
  if (context.has_input(4)) {
    ValueId bias = context.input(4);
    if (!is_last) bias = context.add("Unsqueeze", {bias, context.longs({1, 2})});
    sum = context.add("Add", {sum, bias});
  }
  return sum;
}

bool expand_group_norm(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  const TensorType type = context.input_type(0);
  if (!type.has_rank || (context.has_input(3) && !context.input_type(3).has_rank)) return false;
  const bool is_last = attributes.get_int("channels_last", 1) != 0;
  const ValueId sum = with_skip(context, is_last);
  const auto as_data = [&](ValueId value) {
    if (context.type(value).dtype == type.dtype) return value;
    return context.add("Cast", {value}, {{"to", static_cast<int64_t>(type.dtype)}});
  };
  const ValueId x = is_last ? add_channels_first(context, sum, type.rank()) : sum;
  ValueId y = context.add(
      "GroupNormalization", {x, as_data(context.input(1)), as_data(context.input(2))},
      {{"num_groups", attributes.get_int("groups", 1)}, {"epsilon", attributes.get_float("epsilon", 1e-5F)}});
  if (attributes.get_int("activation", 0) == 1) y = context.add("Mul", {y, context.add("Sigmoid", {y})});
  context.set_output(0, is_last ? add_channels_last(context, y, type.rank()) : y);
  context.set_output(1, sum);
  return true;
}

}  // namespace

std::vector<OpDef> contrib_convolution_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> window = conv_attributes({{"activation", Kind::string},
                                                             {"activation_params", Kind::reals},
                                                             {"channels_last", Kind::integer},
                                                             {"ceil_mode", Kind::integer}});
  const std::vector<AttributeSpec> groups = {{"groups", Kind::integer, true},
                                             {"activation", Kind::integer},
                                             {"channels_last", Kind::integer},
                                             {"epsilon", Kind::real}};
  OpDef skip_group_norm = composite("SkipGroupNorm", 4, 5, expand_group_norm, groups);
  skip_group_norm.schema.max_outputs = 2;
  return {composite("FusedConv", 2, 4, expand_fused_conv, window),
          composite("NhwcFusedConv", 2, 4, expand_nhwc_conv, window),
          composite("NhwcConv", 2, 3, expand_nhwc_conv, window),
          composite("NhwcMaxPool", 1, 1, expand_nhwc_max_pool, window),
          composite("QLinearConv", 8, 9, expand_qlinear_conv, window),
          composite("GroupNorm", 3, 3, expand_group_norm, groups),
          std::move(skip_group_norm)};
}

}  // namespace lathe::ops
