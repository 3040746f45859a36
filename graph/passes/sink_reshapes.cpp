// A Reshape before a pointwise node with no other operand but scalars goes behind it: the node comes next to what may
// take it in, and the Reshape next to what may undo it.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool is_pointwise(const Node& node) {
  return node.op->domain.empty() && node.op->express != nullptr && !node.epilogue && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 && node.outputs[0] != ValueId::none &&
         !is_one_of(node, {"QuantizeLinear", "DequantizeLinear", "PRelu"});
}

// The slot of the only operand that is no scalar; nullopt: there are others, or one that would change the shape.
std::optional<size_t> lone_operand(const Graph& graph, const Node& node) {
  std::optional<size_t> lone;
  for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
    if (node.inputs[slot] == ValueId::none) continue;
    const TensorType& type = graph.value(node.inputs[slot]).type;
    if (type.has_rank && type.rank() == 0) continue;
    if (is_scalar(type) && graph.value(node.inputs[slot]).is_constant() && type.rank() == 1) continue;
    if (lone) return std::nullopt;
    lone = slot;
  }
  return lone;
}

bool sink(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_pointwise(node)) return false;
  const std::optional<size_t> slot = lone_operand(graph, node);
  if (!slot) return false;
  const ValueId shaped = node.inputs[*slot], result = node.outputs[0];
  const NodeId reshape = graph.value(shaped).producer;
  if (reshape == NodeId::none || !rewriter.is_live(reshape) || rewriter.only_user(shaped) != id) return false;
  if (!is_one_of(graph.node(reshape), {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}) || graph.node(reshape).epilogue) {
    return false;
  }
  const ValueId source = graph.node(reshape).inputs[0];
  const TensorType from = graph.value(source).type;
  // One element along one axis may be the other operand.
  if (!from.has_rank || from.rank() == 0 || !graph.value(shaped).type.has_rank ||
      graph.value(shaped).type.rank() == 0) {
    return false;
  }
  TensorType type = from;
  type.dtype = graph.value(result).type.dtype;
  if (type.dtype == DType::undefined) return false;
  const ValueId inner = rewriter.add_value(graph.value(result).name, std::move(type));
  Node moved = graph.node(id), behind = graph.node(reshape);
  moved.inputs[*slot] = source;
  moved.outputs = {inner};
  behind.inputs[0] = inner;
  behind.outputs = {result};
  rewriter.erase(id);
  rewriter.erase(reshape);
  rewriter.add(std::move(moved), id);
  rewriter.add(std::move(behind), id);
  return true;
}

}  // namespace

bool sink_reshapes(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { sink(rewriter, id); });
}

}  // namespace lathe::passes
