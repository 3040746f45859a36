// An If whose condition is known is replaced by the branch that it takes.
#include "graph/passes/inline_body.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

std::shared_ptr<const Graph> taken_branch(const Graph& graph, const Node& node) {
  if (!is_op(node, "If") || node.inputs.empty()) return nullptr;
  const Tensor condition = constant_of(graph, node.inputs[0]);
  if (condition.dtype() != DType::boolean || condition.size() != 1) return nullptr;
  return node.attributes.get_graph(*condition.data<bool>() ? "then_branch" : "else_branch");
}

}  // namespace

bool fold_if(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  const std::vector<NodeId> order = graph.order();
  bool changed = false;
  for (const NodeId id : order) {
    const std::shared_ptr<const Graph> body = taken_branch(graph, graph.node(id));
    if (body == nullptr || body->outputs.size() < graph.node(id).outputs.size()) continue;
    const Node node = graph.node(id);  // NOLINT(performance-unnecessary-copy-initialization): erased below
    const std::vector<ValueId> arguments(node.inputs.end() - node.captures, node.inputs.end());
    if (arguments.size() != body->inputs.size()) continue;
    rewriter.erase(id);
    const std::vector<ValueId> outer = inline_body(rewriter, *body, arguments, node.name, id);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == ValueId::none) continue;
      const ValueId result = outer[index_of(body->outputs[i])];
      // The graph's outputs keep their values (and so their names), whatever the branch hands out.
      if (rewriter.is_output(node.outputs[i])) {
        rewriter.add({.op = &context.ops.require("", "Identity", node.version),
                      .version = node.version,
                      .name = "",
                      .inputs = {result},
                      .outputs = {node.outputs[i]}},
                     id);
      } else {
        rewriter.replace(node.outputs[i], result);
      }
    }
    changed = true;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
