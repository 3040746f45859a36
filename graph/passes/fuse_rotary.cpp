// Rotary embedding from its parts: x * cos + turned(x) * sin, where turned(x) is, as Hugging Face's models spell it,
// both halves of the last axis exchanged, or (GPT-J) the elements of each pair of neighbours; the one that comes first
// negative. It becomes one lathe::Rotary instead of copies of every part.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

struct Turned {
  ValueId x = ValueId::none;
  bool is_interleaved = false;
};

// Elements begin, begin + step, ... below `end` of the last axis of `x`.
struct Piece {
  ValueId x = ValueId::none;
  int64_t begin = 0, end = 0, step = 1;
};

bool is_last_axis(const TensorType& type, int64_t axis) { return axis == -1 || axis == type.rank() - 1; }

class Matcher {
 public:
  explicit Matcher(const Rewriter& rewriter, const Graph& graph) : rewriter_(rewriter), graph_(graph) {}

  // `id` is a Concat, or the Reshape behind one.
  std::optional<Turned> turned(ValueId id) const {
    if (const NodeId join = rewriter_.producer_if(id, "Concat"); join != NodeId::none) return halves(graph_.node(join));
    const NodeId flat = rewriter_.producer_if(id, "Reshape");
    if (flat == NodeId::none) return std::nullopt;
    const NodeId join = rewriter_.producer_if(graph_.node(flat).inputs[0], "Concat");
    return join == NodeId::none ? std::nullopt : neighbours(graph_.node(join), id);
  }

 private:
  std::optional<Piece> piece(ValueId id) const {
    const NodeId producer = id == ValueId::none ? NodeId::none : graph_.value(id).producer;
    if (producer == NodeId::none || !rewriter_.is_live(producer) || graph_.node(producer).epilogue) return std::nullopt;
    const Node& node = graph_.node(producer);
    if (!is_op(node, "Slice") && !is_op(node, "Split")) return std::nullopt;
    const TensorType& type = graph_.value(node.inputs[0]).type;
    if (!type.has_rank || type.rank() < 1 || !type.dims.back().known()) return std::nullopt;
    const int64_t size = type.dims.back().extent;
    if (is_op(node, "Split")) {
      if (!is_last_axis(type, node.attributes.get_int("axis", 0)) || node.outputs.size() != 2) return std::nullopt;
      const TensorType& first = graph_.value(node.outputs[0] != ValueId::none ? node.outputs[0] : id).type;
      if (!first.has_rank || 2 * first.dims.back().extent != size) return std::nullopt;
      const bool is_first = node.outputs[0] == id;
      return Piece{node.inputs[0], is_first ? 0 : size / 2, is_first ? size / 2 : size, 1};
    }
    if (node.version < 10) return std::nullopt;
    const auto begin = integer_of(graph_, node.inputs[1]), end = integer_of(graph_, node.inputs[2]);
    const auto axis = integer_of(graph_, input_or_none(node, 3));
    const auto step =
        input_or_none(node, 4) == ValueId::none ? std::optional<int64_t>(1) : integer_of(graph_, node.inputs[4]);
    if (!begin || !end || !axis || !step || !is_last_axis(type, *axis) || *step < 1) return std::nullopt;
    if (*begin < 0 || *end < 0) return std::nullopt;
    return Piece{node.inputs[0], *begin, std::min(*end, size), *step};
  }

  // The piece behind a Neg that nobody else reads.
  std::optional<Piece> negative_piece(ValueId id) const {
    const NodeId neg = rewriter_.producer_if(id, "Neg");
    return neg == NodeId::none ? std::nullopt : piece(graph_.node(neg).inputs[0]);
  }

  int64_t size_of(ValueId x) const { return graph_.value(x).type.dims.back().extent; }

  std::optional<Turned> halves(const Node& join) const {
    if (join.inputs.size() != 2 ||
        !is_last_axis(graph_.value(join.outputs[0]).type, join.attributes.get_int("axis", 1))) {
      return std::nullopt;
    }
    const auto second = negative_piece(join.inputs[0]), first = piece(join.inputs[1]);
    if (!first || !second || first->x != second->x || first->step != 1 || second->step != 1) return std::nullopt;
    const int64_t size = size_of(first->x), half = size / 2;
    const bool are_halves =
        size % 2 == 0 && first->begin == 0 && first->end == half && second->begin == half && second->end == size;
    return are_halves ? std::optional(Turned{first->x, false}) : std::nullopt;
  }

  std::optional<Turned> neighbours(const Node& join, ValueId flat) const {
    if (join.inputs.size() != 2 ||
        !is_last_axis(graph_.value(join.outputs[0]).type, join.attributes.get_int("axis", 1))) {
      return std::nullopt;
    }
    const auto inside = [&](ValueId id) {
      const NodeId apart = rewriter_.producer_if(id, "Unsqueeze");
      const TensorType& type = graph_.value(id).type;
      const bool is_last = apart != NodeId::none && type.has_rank && type.dims.back().extent == 1;
      return is_last ? graph_.node(apart).inputs[0] : ValueId::none;
    };
    // Where the last axis of both is one element, what is joined are columns of pairs.
    const auto odd = negative_piece(inside(join.inputs[0])), even = piece(inside(join.inputs[1]));
    if (!odd || !even || odd->x != even->x || odd->step != 2 || even->step != 2) return std::nullopt;
    const int64_t size = size_of(odd->x);
    const bool are_pairs =
        size % 2 == 0 && even->begin == 0 && odd->begin == 1 && even->end >= size - 1 && odd->end == size;
    if (!are_pairs || !has_column(join, size / 2) || !same_shape(graph_.value(flat).type, graph_.value(odd->x).type)) {
      return std::nullopt;
    }
    return Turned{odd->x, true};
  }

  // [..., pairs, 1] each: the axis of pairs is the last but one.
  bool has_column(const Node& join, int64_t pairs) const {
    const TensorType& type = graph_.value(join.inputs[0]).type;
    return type.rank() >= 2 && type.dims[type.dims.size() - 2].extent == pairs;
  }

  const Rewriter& rewriter_;
  const Graph& graph_;
};

// The numbers of the pairs, where the table has each of them for both elements of its pair as the operators' own
// expansions spell it (add_rotated in ops/attention/contrib_attention.cpp); else none.
ValueId of_pairs(const Rewriter& rewriter, const Graph& graph, ValueId table, bool is_interleaved) {
  const NodeId flat = is_interleaved ? rewriter.producer_if(table, "Reshape") : NodeId::none;
  if (is_interleaved && flat == NodeId::none) return ValueId::none;
  const ValueId joined = is_interleaved ? graph.node(flat).inputs[0] : table;
  const NodeId join = rewriter.producer_if(joined, "Concat");
  if (join == NodeId::none) return ValueId::none;
  const Node& node = graph.node(join);
  const bool is_twice = node.inputs.size() == 2 && node.inputs[0] == node.inputs[1] &&
                        is_last_axis(graph.value(joined).type, node.attributes.get_int("axis", 1));
  if (!is_twice || !is_interleaved) return is_twice ? node.inputs[0] : ValueId::none;
  const NodeId column = rewriter.producer_if(node.inputs[0], "Unsqueeze");
  if (column == NodeId::none) return ValueId::none;
  const ValueId numbers = graph.node(column).inputs[0];
  const TensorType &from = graph.value(numbers).type, &to = graph.value(table).type;
  if (!from.has_rank || from.rank() != to.rank() || from.rank() < 1 ||
      2 * from.dims.back().extent != to.dims.back().extent || graph.value(node.inputs[0]).type.dims.back().extent != 1)
    return ValueId::none;
  return std::equal(from.dims.begin(), from.dims.end() - 1, to.dims.begin(), same_dim) ? numbers : ValueId::none;
}

struct Match {
  ValueId x, cosines, sines;
  bool is_interleaved;
  NodeId with_cosines, with_sines;
};

bool is_table(const Graph& graph, ValueId id, const TensorType& x) {
  const TensorType& type = graph.value(id).type;
  return type.dtype == DType::f32 && type.has_rank && type.rank() >= 1 && broadcasts_into(type, x) &&
         same_dim(type.dims.back(), x.dims.back());
}

// `id`: the Add.
std::optional<Match> match(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  const Node& sum = graph.node(id);
  if (!is_op(sum, "Add") || sum.epilogue || sum.version < 7 || sum.outputs[0] == ValueId::none) return std::nullopt;
  const Matcher matcher(rewriter, graph);
  for (size_t slot = 0; slot < 2; ++slot) {
    const NodeId with_sines = rewriter.producer_if(sum.inputs[slot], "Mul"),
                 with_cosines = rewriter.producer_if(sum.inputs[1 - slot], "Mul");
    if (with_sines == NodeId::none || with_cosines == NodeId::none || with_sines == with_cosines) continue;
    if (rewriter.only_user(sum.inputs[0]) != id || rewriter.only_user(sum.inputs[1]) != id) continue;
    const std::vector<ValueId>&a = graph.node(with_sines).inputs, &b = graph.node(with_cosines).inputs;
    for (size_t turned_slot = 0; turned_slot < 2; ++turned_slot) {
      const auto found = matcher.turned(a[turned_slot]);
      if (!found || (b[0] != found->x && b[1] != found->x)) continue;
      const ValueId sines = a[1 - turned_slot], cosines = b[0] == found->x ? b[1] : b[0];
      const TensorType& type = graph.value(found->x).type;
      if (type.dtype != DType::f32 || !is_table(graph, cosines, type) || !is_table(graph, sines, type)) continue;
      return Match{found->x, cosines, sines, found->is_interleaved, with_cosines, with_sines};
    }
  }
  return std::nullopt;
}

}  // namespace

bool fuse_rotary(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "Rotary", 1);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    const auto found = match(rewriter, graph, id);
    if (!found) return;
    Node node;
    node.op = schema;
    node.inputs = {found->x, found->cosines, found->sines};
    node.outputs = {graph.node(id).outputs[0]};
    const ValueId cosines = of_pairs(rewriter, graph, found->cosines, found->is_interleaved),
                  sines = of_pairs(rewriter, graph, found->sines, found->is_interleaved);
    if (cosines != ValueId::none && sines != ValueId::none) node.inputs = {found->x, cosines, sines};
    if (found->is_interleaved) node.attributes.set("interleaved", int64_t{1});
    node.fused_from = "Rotary";
    for (const NodeId erased : {id, found->with_cosines, found->with_sines}) rewriter.erase(erased);
    rewriter.add(std::move(node), id);
  });
}

}  // namespace lathe::passes
