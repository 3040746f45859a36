// A factor that is the same along what is reduced waits until there is less to multiply: sum(x * c) = sum(x) * c.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Which axes of its operand of this rank a node averages or sums up; nullopt: it does something else.
std::optional<std::vector<bool>> reduced_axes(const Graph& graph, const Node& node, int rank) {
  const auto all = static_cast<size_t>(rank);
  if (is_op(node, "GlobalAveragePool") || is_op(node, "AveragePool")) {
    std::vector<bool> reduced(all, true);
    if (rank < 3) return std::nullopt;
    reduced[0] = reduced[1] = false;
    return reduced;
  }
  if (!is_op(node, "ReduceMean") && !is_op(node, "ReduceSum")) return std::nullopt;
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (input_or_none(node, 1) != ValueId::none) {
    const auto given = integers_of(graph, node.inputs[1]);
    if (!given) return std::nullopt;
    axes = *given;
  }
  if (axes.empty() && node.attributes.get_int("noop_with_empty_axes", 0) != 0) return std::nullopt;
  std::vector<bool> reduced(all, axes.empty());
  for (const int64_t axis : axes) {
    const int64_t place = axis < 0 ? axis + rank : axis;
    if (place < 0 || place >= rank) return std::nullopt;
    reduced[static_cast<size_t>(place)] = true;
  }
  return reduced;
}

// The factor spreads along every reduced axis, and can be multiplied with the result as it is.
bool is_even(const TensorType& factor, const TensorType& x, const std::vector<bool>& reduced,
             const TensorType& result) {
  if (factor.dtype != DType::f32 || !broadcasts_into(factor, x) || !result.has_rank) return false;
  const size_t shift = x.dims.size() - factor.dims.size();
  for (size_t i = 0; i < factor.dims.size(); ++i) {
    if (reduced[i + shift] && factor.dims[i].extent != 1) return false;
  }
  return result.rank() == x.rank() || (is_scalar(factor) && factor.rank() <= result.rank());
}

bool swap(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (node.inputs.empty() || node.epilogue || node.outputs.size() != 1 || node.outputs[0] == ValueId::none)
    return false;
  const ValueId operand = node.inputs[0];
  const NodeId before = operand == ValueId::none ? NodeId::none : graph.value(operand).producer;
  if (before == NodeId::none || !rewriter.is_live(before) || rewriter.only_user(operand) != id) return false;
  const Node& scale = graph.node(before);
  const bool is_mul = is_op(scale, "Mul"), is_div = is_op(scale, "Div");
  if ((!is_mul && !is_div) || scale.version < 7 || scale.epilogue || scale.inputs[0] == scale.inputs[1]) return false;
  for (size_t slot = 0; slot < (is_mul ? 2u : 1u); ++slot) {
    const ValueId x = scale.inputs[slot], factor = scale.inputs[1 - slot];
    const TensorType &type = graph.value(x).type, result = graph.value(node.outputs[0]).type;
    if (type.dtype != DType::f32 || !type.has_rank || graph.value(x).is_constant()) continue;
    const auto reduced = reduced_axes(graph, node, type.rank());
    if (!reduced || !is_even(graph.value(factor).type, type, *reduced, result)) continue;
    Node behind = scale;
    behind.name.clear();
    behind.outputs = {node.outputs[0]};
    const ValueId inner = rewriter.add_value(graph.value(node.outputs[0]).name, result);
    behind.inputs[slot] = inner;
    rewriter.set_input(id, 0, x);
    rewriter.erase(before);
    rewriter.move_output(inner, id);
    rewriter.add(std::move(behind), id);
    return true;
  }
  return false;
}

}  // namespace

bool reduce_first(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    while (rewriter.is_live(id) && swap(rewriter, id)) {
    }
  });
}

}  // namespace lathe::passes
