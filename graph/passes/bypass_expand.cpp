// An Expand whose reader would spread the value itself, because another operand has the whole shape, is not needed.
#include <algorithm>
#include <array>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool spreads_operands(const Node& node) {
  static constexpr std::array<std::string_view, 18> kOps = {
      "Add",   "Sub",  "Mul", "Div", "Max",  "Min",         "Sum",     "Mean",
      "Pow",   "And",  "Or",  "Xor", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
      "Equal", "Where"};
  // Before opset 7 (8 for Max and its like) there was a broadcast of another kind, or none.
  return node.op->domain.empty() && node.version >= 8 && !node.epilogue &&
         std::find(kOps.begin(), kOps.end(), node.op->name) != kOps.end();
}

// Some operand but `slot` alone gives the result its shape.
bool has_whole_operand(const Graph& graph, const Node& node, size_t slot) {
  const TensorType& expanded = graph.value(node.inputs[slot]).type;
  for (size_t other = 0; other < node.inputs.size(); ++other) {
    if (other == slot || node.inputs[other] == ValueId::none || node.inputs[other] == node.inputs[slot]) continue;
    if (broadcasts_into(expanded, graph.value(node.inputs[other]).type)) return true;
  }
  return false;
}

}  // namespace

bool bypass_expand(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!spreads_operands(graph.node(id))) continue;
    for (size_t slot = 0; slot < graph.node(id).inputs.size(); ++slot) {
      const ValueId operand = graph.node(id).inputs[slot];
      if (operand == ValueId::none) continue;
      const NodeId expand = rewriter.producer_if(operand, "Expand");
      if (expand == NodeId::none || graph.node(expand).epilogue || !has_whole_operand(graph, graph.node(id), slot))
        continue;
      rewriter.set_input(id, slot, graph.node(expand).inputs[0]);
    }
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
