// Where one wide product makes queries, keys and values together, exporters take them apart like this:
//   [..., 3 * heads * size] -Reshape-> [..., 3, heads, size] -Transpose-> [3, ...] -Slice, Gather or Split-> one of
//   them
// or without that Transpose (once sink-transposes has brought it to each of them), or, before heads are taken apart, by
// a Split of the columns. An attention reads such a part of the product where it lies.
#include <algorithm>
#include <numeric>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

// An element of one axis of a value, without that axis.
struct Selected {
  ValueId from = ValueId::none;
  int64_t index = 0;
};

// An axis as a node gives it, which may count from the end of `value`'s.
bool is_axis(const Graph& graph, ValueId value, int64_t given, int64_t axis) {
  return given == axis || given == axis - graph.value(value).type.rank();
}

std::optional<Selected> selected_by_gather(const Rewriter& rewriter, const Graph& graph, ValueId value, int64_t axis) {
  const NodeId gather = rewriter.producer_if(value, "Gather");
  if (gather == NodeId::none) return std::nullopt;
  const Node& node = graph.node(gather);
  const std::optional<int64_t> index = integer_of(graph, node.inputs[1]);
  if (!index || graph.value(node.inputs[1]).type.rank() != 0 ||
      !is_axis(graph, node.inputs[0], node.attributes.get_int("axis", 0), axis)) {
    return std::nullopt;
  }
  return Selected{node.inputs[0], *index};
}

std::optional<Selected> selected_by_slice(const Rewriter& rewriter, const Graph& graph, ValueId value, int64_t axis) {
  const NodeId slice = rewriter.producer_if(value, "Slice");
  if (slice == NodeId::none) return std::nullopt;
  const Node& node = graph.node(slice);
  if (node.version < 10) {
    const std::vector<int64_t> axes = node.attributes.get_ints("axes"), starts = node.attributes.get_ints("starts");
    if (axes.size() != 1 || !is_axis(graph, node.inputs[0], axes[0], axis) || starts.size() != 1) return std::nullopt;
    return Selected{node.inputs[0], starts[0]};
  }
  const std::optional<int64_t> start = integer_of(graph, node.inputs[1]);
  const ValueId axes = input_or_none(node, 3), steps = input_or_none(node, 4);
  const std::optional<int64_t> given = axes == ValueId::none ? 0 : integer_of(graph, axes);
  if (!start || !given || !is_axis(graph, node.inputs[0], *given, axis)) return std::nullopt;
  if (steps != ValueId::none && integer_of(graph, steps) != 1) return std::nullopt;
  return Selected{node.inputs[0], *start};
}

std::optional<Selected> selected_by_split(const Rewriter& rewriter, const Graph& graph, ValueId value, int64_t axis) {
  const NodeId split = graph.value(value).producer;
  if (split == NodeId::none || !rewriter.is_live(split) || !is_op(graph.node(split), "Split")) return std::nullopt;
  const Node& node = graph.node(split);
  if (!is_axis(graph, node.inputs[0], node.attributes.get_int("axis", 0), axis)) return std::nullopt;
  // Only parts of one element: then the output's number is the index.
  for (const ValueId output : node.outputs) {
    if (output == ValueId::none) return std::nullopt;
    const TensorType& type = graph.value(output).type;
    if (!type.has_rank || type.rank() <= axis || type.dims[static_cast<size_t>(axis)].extent != 1) return std::nullopt;
  }
  const auto at = std::find(node.outputs.begin(), node.outputs.end(), value);
  return Selected{node.inputs[0], at - node.outputs.begin()};
}

// What `value` is without its axis of extent 1, dropped by a node.
ValueId squeezed(const Rewriter& rewriter, const Graph& graph, ValueId value, int64_t axis) {
  for (const char* op : {"Squeeze", "Reshape"}) {
    const NodeId node = rewriter.producer_if(value, op);
    if (node == NodeId::none) continue;
    const ValueId source = graph.node(node).inputs[0];
    const TensorType &from = graph.value(source).type, &to = graph.value(value).type;
    if (!from.has_rank || !to.has_rank || from.rank() != to.rank() + 1 || from.rank() <= axis) continue;
    std::vector<Dim> dims = from.dims;
    if (dims[static_cast<size_t>(axis)].extent != 1) continue;
    dims.erase(dims.begin() + axis);
    if (std::equal(to.dims.begin(), to.dims.end(), dims.begin(), same_dim)) return source;
  }
  return ValueId::none;
}

std::optional<Selected> selected(const Rewriter& rewriter, const Graph& graph, ValueId value, int64_t axis) {
  if (const auto found = selected_by_gather(rewriter, graph, value, axis)) return found;
  const ValueId inner = squeezed(rewriter, graph, value, axis);
  if (inner == ValueId::none) return std::nullopt;
  auto found = selected_by_slice(rewriter, graph, inner, axis);
  if (!found) found = selected_by_split(rewriter, graph, inner, axis);
  return found;
}

// A part of heads that are taken apart: [..., count, heads, size].
struct Part {
  ValueId apart = ValueId::none;
  int64_t index = 0;
  Perm perm;  // of [..., heads, size]
};

std::optional<Part> part_of(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  if (const std::optional<Selected> first = selected(rewriter, graph, value, 0)) {
    const NodeId transpose = rewriter.producer_if(first->from, "Transpose");
    if (transpose != NodeId::none) {
      const Perm perm = order_of(graph, graph.node(transpose));
      const auto axis = static_cast<int64_t>(perm.size()) - 3;
      if (axis < 0 || perm[0] != axis) return std::nullopt;
      Part part{graph.node(transpose).inputs[0], first->index, {}};
      for (size_t i = 1; i < perm.size(); ++i) part.perm.push_back(perm[i] > axis ? perm[i] - 1 : perm[i]);
      return part;
    }
  }
  const TensorType& type = graph.value(value).type;
  if (!type.has_rank || type.rank() < 3) return std::nullopt;
  const auto found = selected(rewriter, graph, value, type.rank() - 2);
  if (!found) return std::nullopt;
  Part part{found->from, found->index, Perm(static_cast<size_t>(type.rank()))};
  std::iota(part.perm.begin(), part.perm.end(), 0);
  return part;
}

struct Unpacked {
  ValueId source = ValueId::none;  // [..., count * heads * size]
  std::vector<int64_t> shape;      // in which it is read, where it has other axes before these
  Perm perm;                       // of [..., heads, size]
  int64_t heads = 0, begin = 0, columns = 0;
};

std::optional<Unpacked> unpacked(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const std::optional<Part> part = part_of(rewriter, graph, value);
  if (!part) return std::nullopt;
  const NodeId reshape = rewriter.producer_if(part->apart, "Reshape");
  if (reshape == NodeId::none) return std::nullopt;
  const ValueId source = graph.node(reshape).inputs[0];
  const TensorType &joined = graph.value(source).type, &split = graph.value(part->apart).type;
  if (!joined.has_rank || !split.has_rank || joined.rank() < 2 || split.rank() < 4) return std::nullopt;
  const size_t last = split.dims.size() - 3;
  const Dim &count = split.dims[last], &heads = split.dims[last + 1], &size = split.dims[last + 2];
  if (!count.known() || !heads.known() || !size.known() || !joined.dims.back().known()) return std::nullopt;
  if (heads.extent < 1 || size.extent < 1 || joined.dims.back().extent != count.extent * heads.extent * size.extent) {
    return std::nullopt;
  }
  std::vector<int64_t> shape;
  if (!std::equal(joined.dims.begin(), joined.dims.end() - 1, split.dims.begin(), split.dims.end() - 3, same_dim)) {
    // Windows whose rows and columns were axes of their own: the rows are the same.
    for (size_t i = 0; i < last; ++i) shape.push_back(split.dims[i].extent);
    if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 1; })) return std::nullopt;
    shape.push_back(joined.dims.back().extent);
  }
  const int64_t index = part->index < 0 ? part->index + count.extent : part->index;
  if (index < 0 || index >= count.extent || part->perm.size() + 1 != split.dims.size()) return std::nullopt;
  const int64_t columns = heads.extent * size.extent;
  return Unpacked{source, std::move(shape), part->perm, heads.extent, index * columns, columns};
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
  if (!type.has_rank || type.rank() < 2) return std::nullopt;
  if (!is_axis(graph, node.inputs[0], node.attributes.get_int("axis", 0), type.rank() - 1)) return std::nullopt;
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

constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v"};

// The attention's order of a slot, of what has this one.
void compose(Attributes& attributes, size_t slot, const Perm& order) {
  Perm perm = attributes.get_ints(kPerms[slot]);
  if (perm.empty()) {
    perm = order;
  } else {
    for (int64_t& axis : perm) axis = order[static_cast<size_t>(axis)];
  }
  attributes.set(kPerms[slot], std::move(perm));
}

// True: the attention reads what a Transpose of whole rows reads. One more than absorb-transposes took, as of keys
// whose heads were moved before they were turned.
bool absorb(Rewriter& rewriter, NodeId id, size_t slot) {
  Graph& graph = rewriter.graph();
  const ValueId operand = graph.node(id).inputs[slot];
  const NodeId transpose = rewriter.producer_if(operand, "Transpose");
  if (transpose == NodeId::none || !is_read_by(rewriter, graph, operand, {id, static_cast<int>(slot)})) return false;
  const Perm order = order_of(graph, graph.node(transpose));
  if (order.empty() || order.back() != static_cast<int64_t>(order.size()) - 1) return false;
  compose(graph.node(id).attributes, slot, order);
  rewriter.set_input(id, slot, graph.node(transpose).inputs[0]);
  return true;
}

bool unpack(Rewriter& rewriter, const OpLookup& ops, NodeId id) {
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
    changed = absorb(rewriter, id, slot) || changed;
    const std::optional<Unpacked> found = unpacked(rewriter, graph, graph.node(id).inputs[slot]);
    if (!found) continue;
    compose(attributes, slot, found->perm);
    heads[slot] = found->heads;
    parts[2 * slot] = found->begin;
    parts[2 * slot + 1] = found->columns;
    attributes.set("heads", std::move(heads));
    attributes.set("parts", std::move(parts));
    const ValueId source =
        found->shape.empty() ? found->source : Rearranger(rewriter, ops, id).reshaped(found->source, found->shape);
    rewriter.set_input(id, slot, source);
    changed = true;
  }
  return changed;
}

}  // namespace

bool unpack_heads(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { unpack(rewriter, context.ops, id); });
}

}  // namespace lathe::passes
