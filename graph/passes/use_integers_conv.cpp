// A convolution of dequantized tensors becomes a convolution of integers (lathe::QuantizedConv), QLinearConv becomes
// one with a QuantizeLinear behind it; one that has no kernel for integers takes them apart. Before constants are
// folded: the weights stay bytes.
#include <cmath>

#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

// Beyond this an int32 bias would not be in units of the sums.
constexpr double kScaleTolerance = 1e-5;

float scale_at(const Tensor& scale, int64_t channel) { return scale.data<float>()[scale.size() == 1 ? 0 : channel]; }

Tensor joint_scale(const Tensor& in, const Tensor& weights) {
  Tensor scale(DType::f32, {weights.size()});
  for (int64_t i = 0; i < weights.size(); ++i) {
    scale.mutable_data<float>()[i] = static_cast<float>(double{*in.data<float>()} * double{weights.data<float>()[i]});
  }
  return scale;
}

bool is_float_constant(const Graph& graph, ValueId id, bool is_scalar) {
  const Tensor tensor = constant_of(graph, id);
  return tensor.defined() && tensor.dtype() == DType::f32 && tensor.rank() <= 1 && tensor.size() >= 1 &&
         (!is_scalar || tensor.size() == 1);
}

class Convolutions {
 public:
  Convolutions(Rewriter& rewriter, const OpLookup& ops)
      : rewriter_(rewriter),
        schema_(ops.require("lathe", "QuantizedConv")),
        add_(ops.require("", "Add", 14)),
        quantize_(ops.require("", "QuantizeLinear", 13)),
        dequantize_(ops.require("", "DequantizeLinear", 13)),
        conv_(ops.require("", "Conv", 11)) {}

  void try_node(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    if (node.epilogue || node.outputs[0] == ValueId::none) return;
    if (is_op(node, "Conv")) {
      if (has_kernel(node, 1)) try_conv(id);
    } else if (is_op(node, "QLinearConv")) {
      has_kernel(node, 3) ? try_qlinear(id) : spell_out(id);
    }
  }

 private:
  bool has_kernel(const Node& node, size_t weights) const {
    return has_integer_kernel(node, rewriter_.graph().value(node.inputs[weights]).type);
  }

  bool has_picture(ValueId in, ValueId weights) const {
    const TensorType& type = rewriter_.graph().value(in).type;
    const Tensor constant = constant_of(rewriter_.graph(), weights);
    return type.has_rank && (type.rank() == 3 || type.rank() == 4) && constant.defined() &&
           constant.rank() == type.rank();
  }

  void try_conv(NodeId id) {
    Graph& graph = rewriter_.graph();
    const Node old = graph.node(id);
    const auto in = dequantized(rewriter_, old.inputs[0]), weights = dequantized(rewriter_, old.inputs[1]);
    if (!in || !weights || !in->is_per_tensor() || !has_picture(in->bytes, weights->bytes)) return;
    for (const Dequantized* operand : {&*in, &*weights}) {
      if (graph.value(operand->bytes).type.dtype == DType::i32) return;
    }
    if (!weights->is_per_tensor() && weights->axis != 0) return;
    const int64_t channels = graph.value(weights->bytes).type.dims[0].extent;
    const Tensor scale = joint_scale(in->scale, weights->scale);
    const ValueId bias = input_or_none(old, 2);
    const ValueId units = bias_in_units(bias, scale, channels);
    Tensor added;
    if (bias != ValueId::none && units == ValueId::none) {
      added = real_bias(bias, channels);
      if (!added.defined()) return;
    }
    Node made = quantized_conv(rewriter_, schema_, old, "QuantizedConv",
                               {in->bytes, weights->bytes, rewriter_.add_constant(old.name + "_scale", scale), in->zero,
                                weights->zero, units});
    rewriter_.erase(id);
    for (const ValueId read : old.inputs) drop_unread(read);
    const ValueId result = old.outputs[0];
    if (!added.defined()) {
      rewriter_.move_output(result, rewriter_.add(std::move(made), id));
      return;
    }
    Dims dims(graph.value(result).type.dims.size(), 1);
    dims[1] = channels;
    Node sum;
    sum.op = &add_;
    sum.version = 14;
    sum.inputs = {append_float(rewriter_, std::move(made), result, id),
                  rewriter_.add_constant(old.name + "_bias", added.reshaped(dims))};
    sum.outputs = {ValueId::none};
    rewriter_.move_output(result, rewriter_.add(std::move(sum), id));
  }

  // QLinearConv whose parameters are constants. Inputs: x, scale, zero, w, scale, zero, y scale, y zero, bias.
  bool has_constants(const Node& old) const {
    const Graph& graph = rewriter_.graph();
    if (!has_picture(old.inputs[0], old.inputs[3])) return false;
    if (!is_float_constant(graph, old.inputs[1], true) || !is_float_constant(graph, old.inputs[4], false) ||
        !is_float_constant(graph, old.inputs[6], true)) {
      return false;
    }
    for (const size_t slot : {size_t{2}, size_t{7}}) {
      const Tensor zero = constant_of(graph, old.inputs[slot]);
      if (!zero.defined() || zero.size() != 1) return false;
    }
    const int64_t channels = graph.value(old.inputs[3]).type.dims[0].extent;
    const auto is_for_all = [&](const Tensor& values) {
      return values.defined() && (values.size() == 1 || values.size() == channels);
    };
    if (!is_for_all(constant_of(graph, old.inputs[4])) || !is_for_all(constant_of(graph, old.inputs[5]))) return false;
    const ValueId bias = input_or_none(old, 8);
    const Tensor values = constant_of(graph, bias);
    return bias == ValueId::none || (values.defined() && values.dtype() == DType::i32 && values.size() == channels);
  }

  void try_qlinear(NodeId id) {
    Graph& graph = rewriter_.graph();
    const Node old = graph.node(id);
    if (!has_constants(old)) return;
    const ValueId bias = input_or_none(old, 8);
    const Tensor scale = joint_scale(constant_of(graph, old.inputs[1]), constant_of(graph, old.inputs[4]));
    Node made = quantized_conv(rewriter_, schema_, old, "QLinearConv",
                               {old.inputs[0], old.inputs[3], rewriter_.add_constant(old.name + "_scale", scale),
                                old.inputs[2], old.inputs[5], bias});
    rewriter_.erase(id);
    quantize_result(old, append_float(rewriter_, std::move(made), old.outputs[0], id), id);
  }

  void quantize_result(const Node& old, ValueId real, NodeId place) {
    Node quantize;
    quantize.op = &quantize_;
    quantize.version = 13;
    quantize.inputs = {real, old.inputs[6], old.inputs[7]};
    quantize.outputs = {ValueId::none};
    rewriter_.move_output(old.outputs[0], rewriter_.add(std::move(quantize), place));
  }

  // Without a kernel for integers: a convolution of float32 between DequantizeLinear and QuantizeLinear.
  void spell_out(NodeId id) {
    Graph& graph = rewriter_.graph();
    const Node old = graph.node(id);
    if (!has_constants(old)) return;
    if (constant_of(graph, old.inputs[4]).size() != constant_of(graph, old.inputs[5]).size()) return;
    const auto dequantized = [&](ValueId bytes, ValueId scale, ValueId zero) {
      TensorType type = graph.value(bytes).type;
      type.dtype = DType::f32;
      Node node;
      node.op = &dequantize_;
      node.version = 13;
      node.inputs = {bytes, scale, zero};
      node.attributes.set("axis", int64_t{0});
      node.outputs = {rewriter_.add_value(graph.value(bytes).name, type)};
      const ValueId result = node.outputs[0];
      rewriter_.add(std::move(node), id);
      return result;
    };
    const Tensor scale = joint_scale(constant_of(graph, old.inputs[1]), constant_of(graph, old.inputs[4]));
    rewriter_.erase(id);
    Node conv;
    conv.op = &conv_;
    conv.version = 11;
    conv.name = old.name;
    conv.attributes = old.attributes;
    conv.fused_from = "QLinearConv";
    conv.inputs = {dequantized(old.inputs[0], old.inputs[1], old.inputs[2]),
                   dequantized(old.inputs[3], old.inputs[4], old.inputs[5])};
    if (const ValueId bias = input_or_none(old, 8); bias != ValueId::none) {
      const ValueId unit = rewriter_.add_constant(old.name + "_scale", scale);
      conv.inputs.push_back(dequantized(bias, unit, ValueId::none));
    }
    quantize_result(old, append_float(rewriter_, std::move(conv), old.outputs[0], id), id);
  }

  // Weights that nobody dequantizes any more must not be folded before they are found dead.
  void drop_unread(ValueId id) {
    if (id == ValueId::none || rewriter_.is_used(id)) return;
    const NodeId reader = rewriter_.producer_if(id, "DequantizeLinear");
    if (reader != NodeId::none) rewriter_.erase(reader);
  }

  // The int32 behind a bias that is quantized as the sums are; none: it is not.
  ValueId bias_in_units(ValueId bias, const Tensor& scale, int64_t channels) {
    const auto quantized = dequantized(rewriter_, bias);
    const Graph& graph = rewriter_.graph();
    if (!quantized) return ValueId::none;
    const Tensor values = constant_of(graph, quantized->bytes);
    if (!values.defined() || values.dtype() != DType::i32 || values.size() != channels) return ValueId::none;
    if (const Tensor zero = constant_of(graph, quantized->zero); zero.defined()) {
      for (const int32_t each : zero.elements<int32_t>()) {
        if (each != 0) return ValueId::none;
      }
    }
    for (int64_t i = 0; i < channels; ++i) {
      const double own = scale_at(quantized->scale, i), unit = scale_at(scale, i);
      if (std::abs(own - unit) > kScaleTolerance * std::abs(unit)) return ValueId::none;
    }
    return quantized->bytes;
  }

  // A constant float32 bias, or the values that an int32 one stands for; undefined: neither.
  Tensor real_bias(ValueId bias, int64_t channels) {
    const Graph& graph = rewriter_.graph();
    if (const Tensor constant = constant_of(graph, bias); constant.defined()) {
      return constant.dtype() == DType::f32 && constant.size() == channels ? constant : Tensor();
    }
    const auto quantized = dequantized(rewriter_, bias);
    const Tensor values = quantized ? constant_of(graph, quantized->bytes) : Tensor();
    if (!values.defined() || values.dtype() != DType::i32 || values.size() != channels) return {};
    if (quantized->zero != ValueId::none) return {};
    Tensor real(DType::f32, {channels});
    for (int64_t i = 0; i < channels; ++i) {
      real.mutable_data<float>()[i] = static_cast<float>(values.data<int32_t>()[i]) * scale_at(quantized->scale, i);
    }
    return real;
  }

  Rewriter& rewriter_;
  const OpSchema &schema_, &add_, &quantize_, &dequantize_, &conv_;
};

}  // namespace

bool use_integers_conv(Graph& graph, const PassContext& context) {
  if (context.ops.find("lathe", "QuantizedConv", 1) == nullptr) return false;
  Rewriter rewriter(graph);
  Convolutions convolutions(rewriter, context.ops);
  return rewrite_each(rewriter, [&](NodeId id) { convolutions.try_node(id); });
}

}  // namespace lathe::passes
