// Nodes whose results nobody uses, and results of living nodes that nobody wants.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// An optional output that nobody reads need not be computed. The pieces of a variadic output stand for their positions.
bool drop_unused_outputs(Graph& graph, Node& node, const std::vector<int>& uses) {
  bool dropped = false;
  if (node.op->max_outputs < 0 || is_op(node, "Split")) return false;
  for (size_t i = static_cast<size_t>(std::max(0, node.op->min_outputs)); i < node.outputs.size(); ++i) {
    ValueId& output = node.outputs[i];
    if (output == ValueId::none || uses[index_of(output)] > 0) continue;
    graph.value(output).producer = NodeId::none;
    output = ValueId::none;
    dropped = true;
  }
  return dropped;
}

}  // namespace

bool remove_dead(Graph& graph, const PassContext&) {
  std::vector<int> uses(graph.value_count(), 0);
  const auto count = [&](const std::vector<ValueId>& ids, int step) {
    for (const ValueId id : ids) {
      if (id != ValueId::none) uses[index_of(id)] += step;
    }
  };
  count(graph.outputs, 1);
  for (const NodeId id : graph.order()) count(graph.node(id).inputs, 1);

  bool changed = false;
  std::vector<NodeId> kept;
  for (size_t i = graph.order().size(); i-- > 0;) {
    Node& node = graph.node(graph.order()[i]);
    bool is_wanted = false;
    for (const ValueId id : node.outputs) is_wanted = is_wanted || (id != ValueId::none && uses[index_of(id)] > 0);
    if (is_wanted) {
      changed = drop_unused_outputs(graph, node, uses) || changed;
      kept.push_back(graph.order()[i]);
      continue;
    }
    count(node.inputs, -1);
    for (ValueId& id : node.outputs) {
      if (id != ValueId::none) graph.value(id).producer = NodeId::none;
      id = ValueId::none;
    }
    changed = true;
  }
  if (kept.size() != graph.order().size()) graph.set_order({kept.rbegin(), kept.rend()});
  graph.drop_unused_constants();
  return changed;
}

}  // namespace lathe::passes
