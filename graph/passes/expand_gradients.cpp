// Gradient (ai.onnx.preview.training) becomes the nodes that compute it.
#include "graph/gradient.h"
#include "graph/passes/passes.h"

namespace lathe::passes {

bool expand_gradients(Graph& graph, const PassContext& context) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    const Node& node = graph.node(id);
    if (node.op->name != "Gradient" || node.op->domain != "ai.onnx.preview.training") continue;
    ExpandContext expansion(graph, node, context.ops);
    differentiate(expansion);
    put_in_place(graph, id, expansion);
    std::vector<NodeId> kept;
    for (const NodeId each : graph.order())
      if (each != id) kept.push_back(each);
    graph.set_order(std::move(kept));
    // The values that Gradient names are no inputs of it: its node may stand before theirs.
    graph.sort();
    changed = true;
  }
  return changed;
}

}  // namespace lathe::passes
