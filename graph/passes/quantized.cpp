#include "graph/passes/quantized.h"

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

bool is_integer_product(const Node& node) {
  return is_lathe_op(node, "QuantizedMatMul") || is_lathe_op(node, "QuantizedConv");
}

}  // namespace lathe
