#include "graph/passes/quantized.h"

#include <algorithm>

namespace lathe {

std::optional<Dequantized> dequantized(Rewriter& rewriter, ValueId id) {
  if (id == ValueId::none) return std::nullopt;
  const Graph& graph = rewriter.graph();
  Dequantized result;
  result.node = rewriter.producer_if(id, "DequantizeLinear");
  if (result.node == NodeId::none) return std::nullopt;
  const Node& node = graph.node(result.node);
  if (node.epilogue || node.attributes.get_int("block_size", 0) != 0 || node.inputs.size() < 2) return std::nullopt;
  result.bytes = node.inputs[0];
  const TensorType& type = graph.value(result.bytes).type;
  if (type.dtype != DType::u8 && type.dtype != DType::i8 && type.dtype != DType::i32) return std::nullopt;
  if (graph.value(id).type.dtype != DType::f32) return std::nullopt;
  result.scale = constant_of(graph, node.inputs[1]);
  if (!result.scale.defined() || result.scale.dtype() != DType::f32 || result.scale.rank() > 1) return std::nullopt;
  if (result.scale.size() < 1) return std::nullopt;
  result.zero = input_or_none(node, 2);
  if (result.zero != ValueId::none) {
    const Tensor zero = constant_of(graph, result.zero);
    if (!zero.defined() || zero.size() != result.scale.size() || zero.dtype() != type.dtype) return std::nullopt;
  }
  if (result.is_per_tensor()) return result;
  if (!type.has_rank) return std::nullopt;
  result.axis = node.attributes.get_int("axis", 1);
  if (result.axis < 0) result.axis += type.rank();
  if (result.axis < 0 || result.axis >= type.rank()) return std::nullopt;
  const Dim& extent = type.dims[static_cast<size_t>(result.axis)];
  if (extent.extent != result.scale.size()) return std::nullopt;
  return result;
}

bool can_center(const Tensor& bytes, const Tensor& zeros) {
  const auto has_bytes = [](const Tensor& tensor) { return is_byte(tensor.dtype()); };
  if (!bytes.defined() || !has_bytes(bytes) || bytes.rank() == 0 || bytes.size() == 0) return false;
  return !zeros.defined() || (has_bytes(zeros) && (zeros.size() == 1 || zeros.size() == bytes.dims()[0]));
}

Tensor centered_bytes(const Tensor& weights, const Tensor& zeros) {
  if (!can_center(weights, zeros) || (weights.dtype() == DType::i8 && !zeros.defined())) return {};
  bool fits = true;
  Tensor centered(DType::i8, weights.dims());
  for_each_centered(weights, zeros, [&](int64_t i, int value) {
    fits = fits && value >= -128 && value <= 127;
    centered.mutable_data<int8_t>()[i] = static_cast<int8_t>(value);
  });
  return fits ? centered : Tensor();
}

bool has_integer_kernel(const Node& conv, const TensorType& weights) {
  if (weights.is_static()) {
    int64_t pairs = 1;
    for (size_t axis = 1; axis < weights.dims.size(); ++axis) pairs *= weights.dims[axis].extent;
    if (pairs > kMostBytePairs) return false;
  }
  constexpr int64_t kWidestAlone = 13;  // beyond, the code of a single channel's window is too long
  const int64_t groups = conv.attributes.get_int("group", 1);
  if (groups == 1) return true;
  if (!weights.has_rank || weights.rank() < 3 || !weights.is_static()) return false;
  if (weights.dims[1].extent > 1) return true;
  return weights.dims[0].extent == groups && std::all_of(weights.dims.begin() + 2, weights.dims.end(),
                                                         [](const Dim& dim) { return dim.extent <= kWidestAlone; });
}

Node quantized_conv(Rewriter& rewriter, const OpSchema& schema, const Node& old, const char* fused_from,
                    std::vector<ValueId> inputs) {
  const Graph& graph = rewriter.graph();
  ValueId &weights = inputs[1], &zero = inputs[4];
  const bool is_known = zero == ValueId::none || graph.value(zero).is_constant();
  const Tensor centered = is_known ? centered_bytes(constant_of(graph, weights), constant_of(graph, zero)) : Tensor();
  if (centered.defined()) {
    weights = rewriter.add_constant(old.name + "_weights", centered);
    zero = ValueId::none;
  }
  Node made{.op = &schema, .name = old.name, .inputs = std::move(inputs), .outputs = {ValueId::none}};
  made.attributes = old.attributes;
  made.fused_from = fused_from;
  return made;
}

ValueId append_float(Rewriter& rewriter, Node node, ValueId like, NodeId place) {
  TensorType type = rewriter.graph().value(like).type;
  type.dtype = DType::f32;
  const ValueId value = rewriter.add_value(rewriter.graph().value(like).name, type);
  node.outputs = {value};
  rewriter.add(std::move(node), place);
  return value;
}

bool rearranges_elements(const Node& node) {
  return !node.epilogue && node.outputs.size() == 1 && (is_reshape(node) || is_op(node, "Transpose"));
}

bool is_integer_product(const Node& node) {
  return is_lathe_op(node, "QuantizedMatMul") || is_lathe_op(node, "QuantizedConv");
}

}  // namespace lathe
