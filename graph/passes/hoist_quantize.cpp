// QuantizeLinear behind a movement of elements comes in front of it: it can join what computes the elements, and bytes
// are moved in place of floats.
#include <array>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool moves_elements(const Node& node) {
  static constexpr std::array<std::string_view, 5> kNames = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"};
  for (const std::string_view name : kNames) {
    if (is_op(node, name)) return !node.epilogue && node.outputs.size() == 1;
  }
  return false;
}

// One scale for all elements, both constant.
bool is_uniform(const Graph& graph, const Node& quantize) {
  if (quantize.epilogue || quantize.inputs.size() < 2) return false;
  for (size_t slot = 1; slot < quantize.inputs.size(); ++slot) {
    if (quantize.inputs[slot] == ValueId::none) continue;
    const Tensor constant = constant_of(graph, quantize.inputs[slot]);
    if (!constant.defined() || constant.size() != 1 || constant.rank() > 1) return false;
  }
  return true;
}

// Exchanges `id` and the node in front of it; gives the QuantizeLinear in its new place, or none.
NodeId hoist(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node quantize = graph.node(id);
  const NodeId mover = graph.value(quantize.inputs[0]).producer;
  if (mover == NodeId::none || !rewriter.is_live(mover) || !moves_elements(graph.node(mover))) return NodeId::none;
  if (rewriter.only_user(quantize.inputs[0]) != id) return NodeId::none;
  Node moved = graph.node(mover);
  const ValueId source = moved.inputs[0];
  if (graph.value(source).is_constant()) return NodeId::none;
  TensorType bytes = graph.value(source).type;
  bytes.dtype = graph.value(quantize.outputs[0]).type.dtype;
  const ValueId inner = rewriter.add_value(graph.value(source).name, bytes);
  const ValueId result = quantize.outputs[0];
  rewriter.erase(id);
  rewriter.erase(mover);
  Node first = quantize;
  first.inputs[0] = source;
  first.outputs = {inner};
  const NodeId placed = rewriter.add(std::move(first), mover);
  moved.inputs[0] = inner;
  moved.outputs = {ValueId::none};
  rewriter.move_output(result, rewriter.add(std::move(moved), id));
  return placed;
}

}  // namespace

bool hoist_quantize(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (!rewriter.is_live(id) || !is_op(graph.node(id), "QuantizeLinear") || !is_uniform(graph, graph.node(id)))
      continue;
    while (id != NodeId::none) id = hoist(rewriter, id);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
