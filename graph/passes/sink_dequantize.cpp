// DequantizeLinear in front of a maximum comes behind it: it picks among bytes as among the numbers that they stand
// for. What is dequantized only to be quantized the same way again stays as it is.
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

constexpr int kMaxPoolOfBytes = 12;  // the version that takes them

bool has_bytes(const Graph& graph, const Dequantized& value) {
  const DType dtype = graph.value(value.bytes).type.dtype;
  return value.is_per_tensor() && is_byte(dtype) && *value.scale.data<float>() > 0;
}

int zero_of(const Graph& graph, ValueId id) {
  const Tensor zero = constant_of(graph, id);
  if (!zero.defined()) return 0;
  return zero.dtype() == DType::u8 ? int{*zero.data<uint8_t>()} : int{*zero.data<int8_t>()};
}

void sink_below_max_pool(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node old = graph.node(id);
  if (old.epilogue || old.outputs.empty() || old.outputs[0] == ValueId::none) return;
  if (old.outputs.size() > 1 && old.outputs[1] != ValueId::none) return;
  const auto value = dequantized(rewriter, old.inputs[0]);
  if (!value || !has_bytes(graph, *value)) return;
  Node pool = old;
  if (pool.version < kMaxPoolOfBytes) {
    pool.op = context.ops.find("", "MaxPool", kMaxPoolOfBytes);
    pool.version = kMaxPoolOfBytes;
    if (pool.op == nullptr) return;
  }
  const ValueId result = old.outputs[0];
  TensorType type = graph.value(result).type;
  type.dtype = graph.value(value->bytes).type.dtype;
  const ValueId bytes = rewriter.add_value(graph.value(result).name, type);
  Node dequantize = graph.node(value->node);
  dequantize.name.clear();
  dequantize.inputs[0] = bytes;
  dequantize.outputs = {ValueId::none};
  pool.inputs[0] = value->bytes;
  pool.outputs = {bytes};
  rewriter.erase(id);
  rewriter.add(std::move(pool), id);
  rewriter.move_output(result, rewriter.add(std::move(dequantize), id));
}

void join_with_dequantize(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (node.epilogue || node.inputs.size() < 2) return;
  const auto value = dequantized(rewriter, node.inputs[0]);
  if (!value || !has_bytes(graph, *value)) return;
  const Tensor scale = constant_of(graph, node.inputs[1]);
  if (!scale.defined() || scale.dtype() != DType::f32 || scale.size() != 1) return;
  const ValueId zero = input_or_none(node, 2), result = node.outputs[0];
  if (zero != ValueId::none && !graph.value(zero).is_constant()) return;
  if (graph.value(result).type.dtype != graph.value(value->bytes).type.dtype) return;
  if (*scale.data<float>() != *value->scale.data<float>() || zero_of(graph, zero) != zero_of(graph, value->zero))
    return;
  if (rewriter.replace(result, value->bytes)) rewriter.erase(id);
}

}  // namespace

bool sink_dequantize(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (is_op(graph.node(id), "MaxPool")) sink_below_max_pool(rewriter, context, id);
    if (is_op(graph.node(id), "QuantizeLinear")) join_with_dequantize(rewriter, id);
  });
}

}  // namespace lathe::passes
