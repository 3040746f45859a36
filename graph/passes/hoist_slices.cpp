// A Slice of rows moves up through what works row by row, until it stands before the matrix products (or norms) that
// made them: they make only the rows that somebody reads. A classifier that reads the first token's row of the last
// layer spares most of that layer. A Gather of one place is such a Slice, and a Squeeze. Arithmetic is spared, too,
// where few of many rows are read, as of a mask for all lengths, and larger Slices of other axes.
#include <algorithm>
#include <limits>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "graph/softmax_axes.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;
constexpr int kFarthest = 24;    // nodes between a Slice and what it is to spare
constexpr int kMostReaders = 4;  // each of which makes its own rows of what others read, too

bool is_pointwise(const Node& node) {
  return node.op->domain.empty() && node.op->express != nullptr && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 &&
         !is_one_of(node, {"QuantizeLinear", "DequantizeLinear", "PRelu"});
}

// Of one axis, by positive steps.
struct Selection {
  ValueId whole = ValueId::none, starts = ValueId::none, ends = ValueId::none, steps = ValueId::none;
  int64_t axis = 0;
  Dim rows;  // that are left
};

// What reads the rows alone reads instead of the whole: which operands are selected from, and along which axes.
struct Plan {
  std::vector<std::pair<size_t, int64_t>> operands;
  std::vector<int64_t> shape;  // that a Reshape is told
};

class Hoister {
 public:
  Hoister(Rewriter& rewriter, const PassContext& context)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(context.ops) {}

  void try_node(NodeId id) {
    if (is_op(graph_.node(id), "Gather")) id = slice_from_gather(id);
    std::vector<NodeId> waiting{id};
    while (!waiting.empty()) {
      const NodeId slice = waiting.back();
      waiting.pop_back();
      if (slice == NodeId::none || !rewriter_.is_live(slice)) continue;
      const std::optional<Selection> selection = selection_of(slice);
      if (selection && is_worth_hoisting(*selection)) hoist(slice, *selection, waiting);
    }
  }

 private:
  // Half of the rows at least are spared; one row of an unknown number may be.
  static bool is_worth_it(const Dim& whole, const Dim& rows) {
    return whole.known() ? rows.known() && 2 * rows.extent <= whole.extent : rows.extent == 1;
  }

  std::optional<Selection> selection_of(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!is_op(node, "Slice") || node.version < 10 || node.epilogue || node.outputs[0] == ValueId::none) {
      return std::nullopt;
    }
    const ValueId axes = input_or_none(node, 3), steps = input_or_none(node, 4);
    const auto named = integers_of(graph_, axes);
    const TensorType &from = graph_.value(node.inputs[0]).type, &to = graph_.value(node.outputs[0]).type;
    if (!named || named->size() != 1 || !from.has_rank || !to.has_rank || from.rank() != to.rank()) return std::nullopt;
    if (steps != ValueId::none) {
      const auto step = integers_of(graph_, steps);
      if (!step || step->size() != 1 || (*step)[0] < 1) return std::nullopt;
    }
    const int64_t axis = (*named)[0] < 0 ? (*named)[0] + from.rank() : (*named)[0];
    if (axis < 0 || axis >= from.rank()) return std::nullopt;
    const Dim &whole = from.dims[static_cast<size_t>(axis)], &rows = to.dims[static_cast<size_t>(axis)];
    if (!is_worth_it(whole, rows)) return std::nullopt;
    return Selection{node.inputs[0], node.inputs[1], node.inputs[2], steps, axis, rows};
  }

  // The node that made the whole, when nobody reads the rest of it.
  NodeId maker_of(ValueId whole) const {
    const NodeId maker = graph_.value(whole).producer;
    if (maker == NodeId::none || !rewriter_.is_live(maker)) return NodeId::none;
    const Node& node = graph_.node(maker);
    const bool is_plain = !node.epilogue && node.captures == 0 && node.outputs[0] == whole;
    if (!is_plain || rewriter_.only_user(whole) == NodeId::none || !rewriter_.has_one_use(whole)) {
      return NodeId::none;
    }
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != ValueId::none && rewriter_.is_used(node.outputs[i])) return NodeId::none;
    }
    return maker;
  }

  std::optional<Plan> plan_for(const Node& node, int64_t axis, const Dim& rows) const {
    const TensorType& type = graph_.value(node.outputs[0]).type;
    if (!type.has_rank || node.inputs.empty() || node.inputs[0] == ValueId::none) return std::nullopt;
    const int64_t rank = type.rank();
    const TensorType& first = graph_.value(node.inputs[0]).type;
    if (!first.has_rank) return std::nullopt;
    const auto same_axis = [&](bool can) { return can ? std::optional(Plan{{{0, axis}}, {}}) : std::nullopt; };
    if (is_pointwise(node)) return pointwise_plan(node, axis);
    if (is_op(node, "MatMul")) {
      const bool is_row = axis == rank - 2 && first.rank() >= 2;
      return is_row ? std::optional(Plan{{{0, first.rank() - 2}}, {}}) : std::nullopt;
    }
    if (is_op(node, "Gemm")) {
      const ValueId bias = input_or_none(node, 2);
      const bool is_per_column = bias == ValueId::none ||
                                 (graph_.value(bias).type.has_rank &&
                                  (graph_.value(bias).type.rank() < 2 || graph_.value(bias).type.dims[0].extent == 1));
      return same_axis(axis == 0 && node.attributes.get_int("transA", 0) == 0 && is_per_column);
    }
    if (is_one_of(node, {"LayerNormalization", "RMSNormalization"})) {
      const int64_t normal = node.attributes.get_int("axis", -1);
      return same_axis(axis < (normal < 0 ? normal + rank : normal) && has_short_weights(node, rank, axis));
    }
    if (is_op(node, "Softmax")) return same_axis(!softmax_axes(node, rank).have(axis));
    if (is_op(node, "Transpose")) {
      const std::vector<int64_t> perm = node.attributes.get_ints("perm");
      if (static_cast<int64_t>(perm.size()) != rank) return std::nullopt;
      return Plan{{{0, perm[static_cast<size_t>(axis)]}}, {}};
    }
    if (is_op(node, "Slice")) return same_axis(leaves_more(node, axis, rows));
    if (is_op(node, "Reshape") && node.version >= 5) return reshape_plan(first, type, axis, rows);
    return std::nullopt;
  }

  // A Slice of other axes, of a larger part of them than these rows are: of two Slices, the smaller one comes first.
  bool leaves_more(const Node& slice, int64_t axis, const Dim& rows) const {
    const auto axes = integers_of(graph_, input_or_none(slice, 3));
    const TensorType &from = graph_.value(slice.inputs[0]).type, &to = graph_.value(slice.outputs[0]).type;
    if (!axes || !from.is_static() || !to.is_static() || !rows.known()) return false;
    double left = 1;
    for (const int64_t named : *axes) {
      const auto at = static_cast<size_t>(named < 0 ? named + from.rank() : named);
      if (static_cast<int64_t>(at) == axis || at >= from.dims.size()) return false;
      left *= static_cast<double>(to.dims[at].extent) / static_cast<double>(from.dims[at].extent);
    }
    const int64_t whole = from.dims[static_cast<size_t>(axis)].extent;
    return static_cast<double>(rows.extent) / static_cast<double>(whole) < left;
  }

  // Gain and bias do not reach up to the axis.
  bool has_short_weights(const Node& node, int64_t rank, int64_t axis) const {
    for (size_t slot = 1; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot] == ValueId::none) continue;
      const TensorType& type = graph_.value(node.inputs[slot]).type;
      if (!type.has_rank || type.rank() > rank - 1 - axis) return false;
    }
    return true;
  }

  std::optional<Plan> pointwise_plan(const Node& node, int64_t axis) const {
    const TensorType& type = graph_.value(node.outputs[0]).type;
    Plan plan;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot] == ValueId::none) continue;
      const TensorType& operand = graph_.value(node.inputs[slot]).type;
      if (!operand.has_rank) return std::nullopt;
      const int64_t at = axis - (type.rank() - operand.rank());
      if (at < 0 || operand.dims[static_cast<size_t>(at)].extent == 1) continue;
      // Of an unknown extent that may be 1, nobody knows whether it is to be selected from.
      if (!same_dim(operand.dims[static_cast<size_t>(at)], type.dims[static_cast<size_t>(axis)])) return std::nullopt;
      plan.operands.emplace_back(slot, at);
    }
    return plan.operands.empty() ? std::nullopt : std::optional(plan);
  }

  // Where all axes up to this one are the same on both sides.
  static std::optional<Plan> reshape_plan(const TensorType& from, const TensorType& to, int64_t axis, const Dim& rows) {
    if (axis >= from.rank() || !rows.known() || rows.extent < 1) return std::nullopt;
    Plan plan{{{0, axis}}, {}};
    for (size_t i = 0; i < to.dims.size(); ++i) {
      const bool is_before = static_cast<int64_t>(i) <= axis;
      if (is_before && !same_dim(from.dims[i], to.dims[i])) return std::nullopt;
      if (to.dims[i].extent == 0 || (!is_before && !to.dims[i].known())) return std::nullopt;
      plan.shape.push_back(to.dims[i].known() ? to.dims[i].extent : 0);
    }
    plan.shape[static_cast<size_t>(axis)] = rows.extent;
    return plan;
  }

  // Spares a product rows, or arithmetic nearly all that it does.
  bool is_worth_hoisting(const Selection& selection) const {
    if (reaches_product(selection, kFarthest)) return true;
    const NodeId maker = graph_.value(selection.whole).producer;
    if (maker == NodeId::none || !rewriter_.is_live(maker)) return false;
    const Node& node = graph_.node(maker);
    if (node.epilogue || node.captures > 0 || rewriter_.is_output(selection.whole)) return false;
    if (!is_pointwise(node) && !is_op(node, "Slice")) return false;
    int readers = 0;
    const auto is_one = [&](NodeId user) { return ++readers <= kMostReaders && reads_few_rows(user, selection.whole); };
    const Dim& whole = graph_.value(selection.whole).type.dims[static_cast<size_t>(selection.axis)];
    return are_few_of(whole, selection.rows) && rewriter_.all_users(selection.whole, is_one) &&
           plan_for(node, selection.axis, selection.rows).has_value();
  }

  static bool are_few_of(const Dim& whole, const Dim& rows) {
    constexpr int64_t kFew = 8;
    return whole.known() && rows.known() && kFew * rows.extent <= whole.extent;
  }

  bool reads_few_rows(NodeId user, ValueId whole) const {
    const Node& node = graph_.node(user);
    if (node.inputs[0] != whole) return false;
    const TensorType& type = graph_.value(whole).type;
    if (is_op(node, "Gather")) {
      // Of one place it is to become a Slice.
      const int64_t named = node.attributes.get_int("axis", 0), axis = named < 0 ? named + type.rank() : named;
      return integer_of(graph_, node.inputs[1]) && axis >= 0 && axis < type.rank() &&
             are_few_of(type.dims[static_cast<size_t>(axis)], {1, ""});
    }
    const std::optional<Selection> selection = selection_of(user);
    return selection && are_few_of(type.dims[static_cast<size_t>(selection->axis)], selection->rows);
  }

  bool reaches_product(const Selection& selection, int far) const {
    const NodeId maker = far > 0 ? maker_of(selection.whole) : NodeId::none;
    if (maker == NodeId::none) return false;
    const Node& node = graph_.node(maker);
    const auto plan = plan_for(node, selection.axis, selection.rows);
    if (!plan) return false;
    if (is_one_of(node, {"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "Softmax"})) return true;
    return std::any_of(plan->operands.begin(), plan->operands.end(), [&](const auto& operand) {
      Selection next = selection;
      next.whole = node.inputs[operand.first];
      next.axis = operand.second;
      return reaches_product(next, far - 1);
    });
  }

  NodeId add_slice(const Selection& from, ValueId whole, int64_t axis, ValueId result, NodeId place) {
    std::vector<ValueId> inputs{whole, from.starts, from.ends,
                                rewriter_.add_integers(graph_.value(whole).name + "/axis", {axis})};
    if (from.steps != ValueId::none) inputs.push_back(from.steps);
    return rewriter_.add(made_node(ops_, "Slice", kVersion, std::move(inputs), result), place);
  }

  // The maker makes the rows; the Slices before it, as many as it has operands with rows, wait for their turn.
  void hoist(NodeId slice, const Selection& selection, std::vector<NodeId>& waiting) {
    const NodeId maker = graph_.value(selection.whole).producer;
    const auto plan = plan_for(graph_.node(maker), selection.axis, selection.rows);
    const ValueId result = graph_.node(slice).outputs[0];
    Node node = graph_.node(maker);
    rewriter_.erase(slice);
    if (rewriter_.is_used(selection.whole)) {
      node.name.clear();
    } else {
      rewriter_.erase(maker);
    }
    for (const auto& [slot, axis] : plan->operands) {
      TensorType type = graph_.value(node.inputs[slot]).type;
      type.dims[static_cast<size_t>(axis)] = selection.rows;
      const ValueId rows = rewriter_.add_value(graph_.value(node.inputs[slot]).name, std::move(type));
      waiting.push_back(add_slice(selection, node.inputs[slot], axis, rows, maker));
      node.inputs[slot] = rows;
    }
    if (!plan->shape.empty()) {
      node.inputs[1] = rewriter_.add_integers(node.name + "/shape", plan->shape);
      node.attributes.erase("allowzero");
    }
    std::fill(node.outputs.begin(), node.outputs.end(), ValueId::none);
    node.outputs[0] = result;
    rewriter_.add(std::move(node), maker);
    // Slices of the rows see something else than a Slice now.
    int readers = 0;
    rewriter_.all_users(result, [&](NodeId user) {
      if (is_op(graph_.node(user), "Slice")) waiting.push_back(user);
      return ++readers < kMostReaders;
    });
  }

  // Where it would get somewhere; none otherwise.
  NodeId slice_from_gather(NodeId id) {
    const Node node = graph_.node(id);
    const Tensor index = constant_of(graph_, input_or_none(node, 1));
    const auto place = integers_of(graph_, input_or_none(node, 1));
    const TensorType type = graph_.value(node.inputs[0]).type;
    if (!place || place->size() != 1 || index.rank() > 1 || node.epilogue || !type.has_rank) return NodeId::none;
    const int64_t named = node.attributes.get_int("axis", 0), axis = named < 0 ? named + type.rank() : named;
    const int64_t begin = (*place)[0], end = begin == -1 ? std::numeric_limits<int64_t>::max() : begin + 1;
    if (axis < 0 || axis >= type.rank()) return NodeId::none;
    Selection selection{node.inputs[0], ValueId::none, ValueId::none, ValueId::none, axis, {1, ""}};
    const Dim& whole = type.dims[static_cast<size_t>(axis)];
    // A place that is not there is an error, of which a Slice says nothing.
    if (!whole.known() || begin < -whole.extent || begin >= whole.extent) return NodeId::none;
    if (!is_worth_it(whole, selection.rows) || !is_worth_hoisting(selection)) return NodeId::none;
    selection.starts = rewriter_.add_integers(node.name + "/start", {begin});
    selection.ends = rewriter_.add_integers(node.name + "/end", {end});
    rewriter_.erase(id);
    if (index.rank() == 1) return add_slice(selection, selection.whole, axis, node.outputs[0], id);
    TensorType one = type;
    one.dims[static_cast<size_t>(axis)] = selection.rows;
    const ValueId row = rewriter_.add_value(graph_.value(node.inputs[0]).name, std::move(one));
    const NodeId slice = add_slice(selection, selection.whole, axis, row, id);
    rewriter_.add(made_node(ops_, "Squeeze", kVersion, {row, rewriter_.add_integers(node.name + "/axes", {axis})},
                            node.outputs[0]),
                  id);
    return slice;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
};

}  // namespace

bool hoist_slices(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  Hoister hoister(rewriter, context);
  const std::vector<NodeId> order = graph.order();
  for (size_t i = order.size(); i-- > 0;) {
    const NodeId id = order[i];
    if (!rewriter.is_live(id)) continue;
    if (is_one_of(graph.node(id), {"Slice", "Gather"})) hoister.try_node(id);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
