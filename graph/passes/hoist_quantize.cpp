// QuantizeLinear behind a movement of elements comes in front of it: it can join what computes the elements, and bytes
// are moved in place of floats.
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

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

// Inputs of the node whose elements it moves; none: it does something else.
size_t moved_inputs(const Graph& graph, const Node& node) {
  if (is_op(node, "Concat") && !node.epilogue) return node.inputs.size();
  return rearranges_elements(node) && !graph.value(node.inputs[0]).is_constant() ? 1 : 0;
}

// Exchanges `id` and the node in front of it; gives the QuantizeLinears in their new places, if they have any.
std::vector<NodeId> hoist(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node quantize = graph.node(id);
  const NodeId mover = graph.value(quantize.inputs[0]).producer;
  if (mover == NodeId::none || !rewriter.is_live(mover)) return {};
  Node moved = graph.node(mover);
  const size_t count = moved_inputs(graph, moved);
  if (count == 0 || rewriter.only_user(quantize.inputs[0]) != id) return {};
  const ValueId result = quantize.outputs[0];
  const DType dtype = graph.value(result).type.dtype;
  rewriter.erase(id);
  rewriter.erase(mover);
  std::vector<NodeId> placed;
  for (size_t slot = 0; slot < count; ++slot) {
    const ValueId source = moved.inputs[slot];
    TensorType bytes = graph.value(source).type;
    bytes.dtype = dtype;
    Node first = quantize;
    first.inputs[0] = source;
    if (slot > 0) first.name.clear();  // the Rewriter gives each copy a name that no other node has
    first.outputs = {rewriter.add_value(graph.value(source).name, bytes)};
    moved.inputs[slot] = first.outputs[0];
    placed.push_back(rewriter.add(std::move(first), mover));
  }
  moved.outputs = {ValueId::none};
  rewriter.move_output(result, rewriter.add(std::move(moved), id));
  return placed;
}

}  // namespace

bool hoist_quantize(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!rewriter.is_live(id) || !is_op(graph.node(id), "QuantizeLinear") || !is_uniform(graph, graph.node(id)))
      continue;
    std::vector<NodeId> left = {id};
    while (!left.empty()) {
      const NodeId next = left.back();
      left.pop_back();
      const std::vector<NodeId> placed = hoist(rewriter, next);
      left.insert(left.end(), placed.begin(), placed.end());
    }
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
