// DequantizeLinear in front of a maximum comes behind it: it picks among bytes as among the numbers that they stand
// for. So it does behind whatever only moves elements, or multiplies all by one number, on the way to a product of
// dequantized operands, which multiplies bytes then, and behind a Gather of rows of a quantized table, of which nobody
// reads more. What is dequantized only to be quantized the same way again stays as it is.
#include <algorithm>
#include <cmath>

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

// ---- Movements of elements

constexpr size_t kLongestWay = 8;  // nodes; heads of an attention are four away from the product that made them

bool moves_elements(const Node& node) {
  return rearranges_elements(node) || (!node.epilogue && is_one_of(node, {"Expand", "Slice", "Split", "Gather"}));
}

// Of a product or a quotient that multiplies all elements of its first input by one positive number.
std::optional<float> factor_of(const Graph& graph, const Node& node) {
  if (node.epilogue || !is_one_of(node, {"Mul", "Div"})) return std::nullopt;
  const TensorType& type = graph.value(node.inputs[1]).type;
  const auto number = scalar_of(graph, node.inputs[1]);
  if (!number || type.rank() > 0 || !(*number > 0)) return std::nullopt;
  const float factor = is_op(node, "Mul") ? *number : 1 / *number;
  return std::isfinite(factor) ? std::optional(factor) : std::nullopt;
}

// One scale for all, or scales of channels that stay those of an axis.
bool can_pass(const Graph& graph, const Dequantized& value, const Node& node) {
  if (factor_of(graph, node)) return true;
  if (!moves_elements(node)) return false;
  return value.is_per_tensor() || (is_op(node, "Transpose") && !order_of(graph, node).empty());
}

// What lies between a DequantizeLinear and this value, the last first; nullopt: something that it cannot pass.
std::optional<std::vector<NodeId>> way_from_dequantize(Rewriter& rewriter, ValueId id) {
  const Graph& graph = rewriter.graph();
  std::vector<NodeId> way;
  while (way.size() <= kLongestWay) {
    if (const auto value = dequantized(rewriter, id)) {
      const bool is_free =
          std::all_of(way.begin(), way.end(), [&](NodeId each) { return can_pass(graph, *value, graph.node(each)); });
      return is_free && is_byte(graph.value(value->bytes).type.dtype) ? std::optional(way) : std::nullopt;
    }
    if (id == ValueId::none) return std::nullopt;
    const NodeId producer = graph.value(id).producer;
    if (producer == NodeId::none || !rewriter.is_live(producer)) return std::nullopt;
    const Node& node = graph.node(producer);
    if (!moves_elements(node) && !factor_of(graph, node)) return std::nullopt;
    way.push_back(producer);
    id = node.inputs[0];
  }
  return std::nullopt;
}

// The DequantizeLinear of `value`, for the same bytes behind `node`.
Node dequantize_behind(Rewriter& rewriter, const Dequantized& value, const Node& node) {
  Node dequantize = rewriter.graph().node(value.node);
  dequantize.name.clear();
  dequantize.outputs = {ValueId::none};
  if (const auto factor = factor_of(rewriter.graph(), node)) {
    Tensor scale(DType::f32, value.scale.dims());
    std::transform(value.scale.data<float>(), value.scale.data<float>() + scale.size(), scale.mutable_data<float>(),
                   [&](float each) { return each * *factor; });
    dequantize.inputs[1] = rewriter.add_constant("scale", scale);
  } else if (!value.is_per_tensor()) {
    const std::vector<int64_t> order = order_of(rewriter.graph(), node);
    dequantize.attributes.set("axis", std::find(order.begin(), order.end(), value.axis) - order.begin());
  }
  return dequantize;
}

// Requires: can_pass().
void sink_below(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node old = graph.node(id);
  const Dequantized value = *dequantized(rewriter, old.inputs[0]);
  const Node dequantize = dequantize_behind(rewriter, value, old);
  Node moved = old;
  moved.inputs[0] = value.bytes;
  for (ValueId& output : moved.outputs) {
    if (output == ValueId::none) continue;
    TensorType type = graph.value(output).type;
    type.dtype = graph.value(value.bytes).type.dtype;
    output = rewriter.add_value(graph.value(output).name, type);
  }
  const bool is_moved = moves_elements(old);
  rewriter.erase(id);
  if (is_moved) rewriter.add(moved, id);
  for (size_t i = 0; i < old.outputs.size(); ++i) {
    if (old.outputs[i] == ValueId::none) continue;
    Node behind = dequantize;
    behind.inputs[0] = is_moved ? moved.outputs[i] : value.bytes;
    rewriter.move_output(old.outputs[i], rewriter.add(std::move(behind), id));
  }
  if (!rewriter.is_used(graph.node(value.node).outputs[0])) rewriter.erase(value.node);
}

void sink_to_product(Rewriter& rewriter, NodeId id) {
  const Node product = rewriter.graph().node(id);
  if (product.epilogue || product.inputs.size() < 2) return;
  std::vector<NodeId> passed;
  for (size_t slot = 0; slot < 2; ++slot) {
    const auto way = way_from_dequantize(rewriter, product.inputs[slot]);
    if (!way) return;
    passed.insert(passed.end(), way->rbegin(), way->rend());
  }
  for (const NodeId each : passed) {
    if (rewriter.is_live(each)) sink_below(rewriter, each);
  }
}

// An embedding reads a few rows of its table.
void sink_below_gather(Rewriter& rewriter, NodeId id) {
  const Graph& graph = rewriter.graph();
  const Node& gather = graph.node(id);
  if (gather.epilogue || gather.outputs[0] == ValueId::none) return;
  const auto value = dequantized(rewriter, gather.inputs[0]);
  if (value && has_bytes(graph, *value) && graph.value(value->bytes).is_constant()) sink_below(rewriter, id);
}

// ---- QuantizeLinear behind it

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
    if (is_one_of(graph.node(id), {"MatMul", "Gemm", "Conv"})) sink_to_product(rewriter, id);
    if (is_op(graph.node(id), "Gather")) sink_below_gather(rewriter, id);
    if (is_op(graph.node(id), "QuantizeLinear")) join_with_dequantize(rewriter, id);
  });
}

}  // namespace lathe::passes
