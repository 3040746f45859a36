// Where one wide product makes queries, keys and values together, exporters take them apart like this:
//   [..., 3 * heads * size] -Reshape-> [..., 3, heads, size] -Transpose-> [3, ...] -Slice, Gather or Split-> one of
//   them
// or, before heads are taken apart, by a Split of the columns. An attention reads such a part of the product where it
// lies.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

// An element of the first axis of a value, without that axis.
struct Selected {
  ValueId from = ValueId::none;
  int64_t index = 0;
};

std::optional<Selected> selected_by_gather(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId gather = rewriter.producer_if(value, "Gather");
  if (gather == NodeId::none) return std::nullopt;
  const Node& node = graph.node(gather);
  const std::optional<int64_t> index = integer_of(graph, node.inputs[1]);
  if (!index || graph.value(node.inputs[1]).type.rank() != 0 || node.attributes.get_int("axis", 0) != 0) {
    return std::nullopt;
  }
  return Selected{node.inputs[0], *index};
}

std::optional<Selected> selected_by_slice(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId slice = rewriter.producer_if(value, "Slice");
  if (slice == NodeId::none) return std::nullopt;
  const Node& node = graph.node(slice);
  if (node.version < 10) {
    const std::vector<int64_t> axes = node.attributes.get_ints("axes"), starts = node.attributes.get_ints("starts");
    if (axes != Perm{0} || starts.size() != 1) return std::nullopt;
    return Selected{node.inputs[0], starts[0]};
  }
  const std::optional<int64_t> start = integer_of(graph, node.inputs[1]);
  const ValueId axes = input_or_none(node, 3), steps = input_or_none(node, 4);
  if (!start || (axes != ValueId::none && integer_of(graph, axes) != 0)) return std::nullopt;
  if (steps != ValueId::none && integer_of(graph, steps) != 1) return std::nullopt;
  return Selected{node.inputs[0], *start};
}

std::optional<Selected> selected_by_split(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId split = graph.value(value).producer;
  if (split == NodeId::none || !rewriter.is_live(split) || !is_op(graph.node(split), "Split")) return std::nullopt;
  const Node& node = graph.node(split);
  if (node.attributes.get_int("axis", 0) != 0) return std::nullopt;
  // Only parts of one element: then the output's number is the index.
  for (const ValueId output : node.outputs) {
    if (output == ValueId::none) return std::nullopt;
    const TensorType& type = graph.value(output).type;
    if (!type.has_rank || type.rank() < 1 || type.dims[0].extent != 1) return std::nullopt;
  }
  const auto at = std::find(node.outputs.begin(), node.outputs.end(), value);
  return Selected{node.inputs[0], at - node.outputs.begin()};
}

// The first axis of `value`, of extent 1, is dropped by this node.
ValueId squeezed(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  for (const char* op : {"Squeeze", "Reshape"}) {
    const NodeId node = rewriter.producer_if(value, op);
    if (node == NodeId::none) continue;
    const ValueId source = graph.node(node).inputs[0];
    const TensorType &from = graph.value(source).type, &to = graph.value(value).type;
    if (!from.has_rank || !to.has_rank || from.rank() != to.rank() + 1 || from.dims[0].extent != 1) continue;
    if (std::equal(to.dims.begin(), to.dims.end(), from.dims.begin() + 1, same_dim)) return source;
  }
  return ValueId::none;
}

std::optional<Selected> selected(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  if (const auto found = selected_by_gather(rewriter, graph, value)) return found;
  const ValueId inner = squeezed(rewriter, graph, value);
  if (inner == ValueId::none) return std::nullopt;
  auto found = selected_by_slice(rewriter, graph, inner);
  if (!found) found = selected_by_split(rewriter, graph, inner);
  if (!found || graph.value(inner).type.dims[0].extent != 1) return std::nullopt;
  return found;
}

struct Unpacked {
  ValueId source = ValueId::none;  // [..., count * heads * size]
  Perm perm;                       // of [..., heads, size]
  int64_t heads = 0, begin = 0, columns = 0;
};

std::optional<Unpacked> unpacked(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const std::optional<Selected> part = selected(rewriter, graph, value);
  if (!part) return std::nullopt;
  const NodeId transpose = rewriter.producer_if(part->from, "Transpose");
  if (transpose == NodeId::none) return std::nullopt;
  const ValueId apart = graph.node(transpose).inputs[0];
  const NodeId reshape = rewriter.producer_if(apart, "Reshape");
  if (reshape == NodeId::none) return std::nullopt;
  const ValueId source = graph.node(reshape).inputs[0];
  const TensorType &joined = graph.value(source).type, &split = graph.value(apart).type;
  if (!joined.has_rank || !split.has_rank || joined.rank() < 2 || split.rank() != joined.rank() + 2)
    return std::nullopt;
  const size_t last = joined.dims.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    if (!same_dim(joined.dims[i], split.dims[i])) return std::nullopt;
  }
  const Dim &count = split.dims[last], &heads = split.dims[last + 1], &size = split.dims[last + 2];
  if (!count.known() || !heads.known() || !size.known() || !joined.dims[last].known()) return std::nullopt;
  if (heads.extent < 1 || size.extent < 1 || joined.dims[last].extent != count.extent * heads.extent * size.extent) {
    return std::nullopt;
  }
  const Perm perm = graph.node(transpose).attributes.get_ints("perm");
  const auto axis = static_cast<int64_t>(last);
  if (perm.size() != split.dims.size() || perm[0] != axis) return std::nullopt;
  const int64_t index = part->index < 0 ? part->index + count.extent : part->index;
  if (index < 0 || index >= count.extent) return std::nullopt;

  Unpacked result{source, {}, heads.extent, index * heads.extent * size.extent, heads.extent * size.extent};
  for (size_t i = 1; i < perm.size(); ++i) result.perm.push_back(perm[i] > axis ? perm[i] - 1 : perm[i]);
  return result;
}

// Some columns of a wide value, by a Split of its last axis.
struct Columns {
  ValueId source = ValueId::none;
  int64_t begin = 0, count = 0;
};

std::optional<Columns> columns_of(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId split = graph.value(value).producer;
  if (split == NodeId::none || !rewriter.is_live(split) || !is_op(graph.node(split), "Split")) return std::nullopt;
  const Node& node = graph.node(split);
  const TensorType& type = graph.value(node.inputs[0]).type;
  const int64_t axis = node.attributes.get_int("axis", 0);
  if (!type.has_rank || type.rank() < 2 || (axis != -1 && axis != type.rank() - 1)) return std::nullopt;
  Columns found{node.inputs[0]};
  for (const ValueId output : node.outputs) {
    if (output == ValueId::none || graph.value(output).type.rank() != type.rank()) return std::nullopt;
    found.count = graph.value(output).type.dims.back().extent;
    if (found.count < 1) return std::nullopt;
    if (output == value) return found;
    found.begin += found.count;
  }
  return std::nullopt;
}

// Nobody wants what the node makes: it is left over from a fusion.
bool is_dead(const Rewriter& rewriter, const Graph& graph, NodeId id, int depth = 0) {
  constexpr int kDeepest = 3;
  const Node& node = graph.node(id);
  return depth < kDeepest && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
           if (output == ValueId::none) return true;
           const std::vector<Graph::Use> uses = rewriter.uses(output);
           return !rewriter.is_output(output) && std::all_of(uses.begin(), uses.end(), [&](const Graph::Use& use) {
             return is_dead(rewriter, graph, use.node, depth + 1);
           });
         });
}

bool is_read_by(const Rewriter& rewriter, const Graph& graph, ValueId value, Graph::Use reader) {
  const std::vector<Graph::Use> uses = rewriter.uses(value);
  return !rewriter.is_output(value) && std::all_of(uses.begin(), uses.end(), [&](const Graph::Use& use) {
    return use.node == reader.node ? use.slot == reader.slot : is_dead(rewriter, graph, use.node);
  });
}

// True: the attention reads its operand as a range of columns of another value.
bool read_columns(Rewriter& rewriter, NodeId id, size_t slot) {
  Graph& graph = rewriter.graph();
  const ValueId operand = graph.node(id).inputs[slot];
  if (!is_read_by(rewriter, graph, operand, {id, static_cast<int>(slot)})) return false;
  const std::optional<Columns> found = columns_of(rewriter, graph, operand);
  if (!found) return false;
  std::vector<int64_t> parts = graph.node(id).attributes.get_ints("parts", {0, 0, 0, 0, 0, 0});
  parts[2 * slot] = found->begin;
  parts[2 * slot + 1] = found->count;
  graph.node(id).attributes.set("parts", std::move(parts));
  rewriter.set_input(id, slot, found->source);
  return true;
}

bool unpack(Rewriter& rewriter, NodeId id) {
  static constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v"};
  Graph& graph = rewriter.graph();
  if (!is_lathe_op(graph.node(id), "Attention")) return false;
  bool changed = false;
  for (size_t slot = 0; slot < 3; ++slot) {
    Attributes& attributes = graph.node(id).attributes;
    std::vector<int64_t> heads = attributes.get_ints("heads", {0, 0, 0, 0});
    std::vector<int64_t> parts = attributes.get_ints("parts", {0, 0, 0, 0, 0, 0});
    if (parts[2 * slot + 1] != 0) continue;
    if (read_columns(rewriter, id, slot)) {
      changed = true;
      continue;
    }
    if (heads[slot] != 0) continue;
    const std::optional<Unpacked> found = unpacked(rewriter, graph, graph.node(id).inputs[slot]);
    if (!found) continue;
    Perm perm = attributes.get_ints(kPerms[slot]);
    if (perm.empty()) {
      perm = found->perm;
    } else {
      for (int64_t& axis : perm) axis = found->perm[static_cast<size_t>(axis)];
    }
    heads[slot] = found->heads;
    parts[2 * slot] = found->begin;
    parts[2 * slot + 1] = found->columns;
    attributes.set(kPerms[slot], std::move(perm));
    attributes.set("heads", std::move(heads));
    attributes.set("parts", std::move(parts));
    rewriter.set_input(id, slot, found->source);
    changed = true;
  }
  return changed;
}

}  // namespace

bool unpack_heads(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { unpack(rewriter, id); });
}

}  // namespace lathe::passes
