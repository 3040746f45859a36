// Concat and Split that undo each other, and Concat of Concat: all parts of a value side by side are the value. A Slice
// of one part of a Concat reads that part.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/slice_piece.h"

namespace lathe::passes {
namespace {

// The axis, counted from the front; -1: not known.
int64_t axis_of(const Graph& graph, const Node& node) {
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (!type.has_rank) return -1;
  if (is_op(node, "Concat") && node.version < 4 && !node.attributes.has("axis")) return 1;
  const int64_t axis = node.attributes.get_int("axis", 0);
  return axis < 0 ? axis + type.rank() : axis;
}

// The Split of which `inputs` holds all parts, in order, from `first` on.
NodeId split_behind(const Rewriter& rewriter, const Graph& graph, const std::vector<ValueId>& inputs, size_t first,
                    int64_t axis) {
  if (inputs[first] == ValueId::none) return NodeId::none;
  const NodeId id = graph.value(inputs[first]).producer;
  if (id == NodeId::none || !rewriter.is_live(id) || !is_op(graph.node(id), "Split")) return NodeId::none;
  const Node& split = graph.node(id);
  if (split.outputs.size() > inputs.size() - first || axis_of(graph, split) != axis) return NodeId::none;
  if (std::count(split.outputs.begin(), split.outputs.end(), ValueId::none) > 0) return NodeId::none;
  const bool holds_all =
      std::equal(split.outputs.begin(), split.outputs.end(), inputs.begin() + static_cast<std::ptrdiff_t>(first));
  return holds_all ? id : NodeId::none;
}

// A Concat along the same axis that nobody else reads.
NodeId inner_concat(const Rewriter& rewriter, const Graph& graph, ValueId value, NodeId user, int64_t axis) {
  const NodeId id = rewriter.producer_if(value, "Concat");
  if (id == NodeId::none || rewriter.only_user(value) != user || axis_of(graph, graph.node(id)) != axis) {
    return NodeId::none;
  }
  return rewriter.has_one_use(value) ? id : NodeId::none;
}

bool simplify_concat(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::vector<ValueId> inputs = graph.node(id).inputs;
  const int64_t axis = axis_of(graph, graph.node(id));
  if (axis < 0) return false;
  std::vector<ValueId> kept;
  std::vector<NodeId> swallowed;
  for (size_t i = 0; i < inputs.size();) {
    if (const NodeId split = split_behind(rewriter, graph, inputs, i, axis); split != NodeId::none) {
      kept.push_back(graph.node(split).inputs[0]);
      i += graph.node(split).outputs.size();
      continue;
    }
    if (const NodeId inner = inner_concat(rewriter, graph, inputs[i], id, axis); inner != NodeId::none) {
      kept.insert(kept.end(), graph.node(inner).inputs.begin(), graph.node(inner).inputs.end());
      swallowed.push_back(inner);
    } else {
      kept.push_back(inputs[i]);
    }
    ++i;
  }
  if (kept == inputs) return false;
  Node& node = graph.node(id);
  node.inputs.assign(kept.size(), ValueId::none);
  for (size_t i = 0; i < kept.size(); ++i) rewriter.set_input(id, i, kept[i]);
  for (const NodeId inner : swallowed) rewriter.erase(inner);
  return true;
}

// Split(Concat(a, b, c)) into pieces as long as a, b and c: those themselves.
bool undo_split(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& split = graph.node(id);
  const NodeId concat = rewriter.producer_if(split.inputs[0], "Concat");
  if (concat == NodeId::none) return false;
  const std::vector<ValueId> parts = graph.node(concat).inputs, outputs = split.outputs;
  const int64_t axis = axis_of(graph, split);
  if (axis < 0 || axis != axis_of(graph, graph.node(concat)) || parts.size() != outputs.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (outputs[i] == ValueId::none || rewriter.is_output(outputs[i])) return false;
    const TensorType &part = graph.value(parts[i]).type, &piece = graph.value(outputs[i]).type;
    if (!part.has_rank || !piece.has_rank || axis >= part.rank() || axis >= piece.rank()) return false;
    const auto at = static_cast<size_t>(axis);
    if (!part.dims[at].known() || part.dims[at].extent != piece.dims[at].extent) return false;
  }
  for (size_t i = 0; i < parts.size(); ++i) rewriter.replace(outputs[i], parts[i]);
  rewriter.erase(id);
  return true;
}

// Slice(Concat(a, b, c)) of places of b alone: of b.
void read_part(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const auto piece = slice_piece(graph, id);
  const Node& slice = graph.node(id);
  const NodeId concat = piece ? rewriter.producer_if(slice.inputs[0], "Concat") : NodeId::none;
  if (concat == NodeId::none || slice.version < 10 || piece->begin >= piece->end) return;
  if (graph.node(concat).epilogue || axis_of(graph, graph.node(concat)) != piece->axis) return;
  constexpr size_t kMostParts = 64;  // to look through for each Slice
  if (graph.node(concat).inputs.size() > kMostParts) return;
  int64_t begin = 0;
  for (const ValueId part : graph.node(concat).inputs) {
    const TensorType& type = graph.value(part).type;
    if (!type.has_rank || !type.dims[static_cast<size_t>(piece->axis)].known()) return;
    const int64_t end = begin + type.dims[static_cast<size_t>(piece->axis)].extent;
    if (piece->begin >= begin && piece->end <= end) {
      const std::string name = graph.value(slice.outputs[0]).name;  // values move
      const ValueId starts = rewriter.add_integers(name + "/start", {piece->begin - begin});
      const ValueId ends = rewriter.add_integers(name + "/end", {piece->end - begin});
      rewriter.set_input(id, 0, part);
      rewriter.set_input(id, 1, starts);
      rewriter.set_input(id, 2, ends);
      // All numbers are of one type.
      if (slice.inputs.size() > 3) rewriter.set_input(id, 3, rewriter.add_integers(name + "/axis", {piece->axis}));
      if (slice.inputs.size() > 4) rewriter.set_input(id, 4, rewriter.add_integers(name + "/step", {1}));
      return;
    }
    begin = end;
  }
}

}  // namespace

bool join_parts(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (graph.node(id).epilogue || graph.node(id).inputs.empty()) return;
    if (is_op(graph.node(id), "Concat")) simplify_concat(rewriter, id);
    if (is_op(graph.node(id), "Split")) undo_split(rewriter, id);
    if (is_op(graph.node(id), "Slice")) read_part(rewriter, id);
  });
}

}  // namespace lathe::passes
