// A reduction of a reduction of the same kind, over other axes, is one over the axes of both: rows and then columns, as
// some exporters take the mean of a picture.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Means of equally many are the mean of all; sums, products and extremes are so anyway.
bool can_merge(const Node& node) {
  static constexpr std::string_view kKinds[] = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"};
  return node.op->domain.empty() && !node.epilogue && node.outputs[0] != ValueId::none &&
         std::find(std::begin(kKinds), std::end(kKinds), node.op->name) != std::end(kKinds);
}

// From the front; nullopt: not known, or all.
std::optional<std::vector<int64_t>> axes_of(const Graph& graph, const Node& node) {
  const TensorType& type = graph.value(node.inputs[0]).type;
  const ValueId list = input_or_none(node, 1);
  auto axes = list == ValueId::none ? std::optional(node.attributes.get_ints("axes")) : integers_of(graph, list);
  if (!axes || axes->empty() || !type.has_rank) return std::nullopt;
  for (int64_t& axis : *axes) axis += axis < 0 ? type.rank() : 0;
  return axes;
}

bool keeps_axes(const Node& node) { return node.attributes.get_int("keepdims", 1) != 0; }

// The axes of the second one, counted as before the first one dropped its own.
std::vector<int64_t> counted_before(const std::vector<int64_t>& axes, const std::vector<int64_t>& dropped, int rank) {
  std::vector<int64_t> kept, result;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (std::find(dropped.begin(), dropped.end(), axis) == dropped.end()) kept.push_back(axis);
  }
  for (const int64_t axis : axes) result.push_back(kept[static_cast<size_t>(axis)]);
  return result;
}

bool merge(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  if (!can_merge(graph.node(id))) return false;
  const NodeId before = rewriter.producer_if(graph.node(id).inputs[0], graph.node(id).op->name);
  if (before == NodeId::none || rewriter.only_user(graph.node(id).inputs[0]) != id) return false;
  const Node &first = graph.node(before), &second = graph.node(id);
  if (!can_merge(first) || keeps_axes(first) != keeps_axes(second) || first.version != second.version) return false;
  const auto first_axes = axes_of(graph, first);
  auto axes = axes_of(graph, second);
  if (!first_axes || !axes) return false;
  const TensorType& type = graph.value(first.inputs[0]).type;
  if (!keeps_axes(first)) axes = counted_before(*axes, *first_axes, type.rank());
  axes->insert(axes->end(), first_axes->begin(), first_axes->end());
  std::sort(axes->begin(), axes->end());
  // One axis twice: of one element by then, and the mean of it is no mean of all.
  if (std::adjacent_find(axes->begin(), axes->end()) != axes->end()) return false;
  const ValueId x = first.inputs[0];
  if (input_or_none(second, 1) == ValueId::none) {
    graph.node(id).attributes.set("axes", *axes);
  } else {
    rewriter.set_input(id, 1, rewriter.add_integers(second.name + "/axes", *axes));
  }
  rewriter.set_input(id, 0, x);
  rewriter.erase(before);
  return true;
}

}  // namespace

bool merge_reductions(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { merge(rewriter, id); });
}

}  // namespace lathe::passes
