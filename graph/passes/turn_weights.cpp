// A Transpose of pictures that are flattened for a product with constant weights goes into the order of the weights'
// rows: the last Transpose of TensorFlow's classifiers.
#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"
#include "src/base/axis_order.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

struct Match {
  NodeId transpose = NodeId::none, flatten = NodeId::none;
  Ints perm;
  Ints extents;             // of all axes but the first, as they are flattened
  int64_t rows = 1;         // of the weights: the product of these
  bool by_columns = false;  // Gemm with transB: one row for each result
};

// [n, ...] to [n, the rest], by a Reshape or Flatten.
bool is_flattening(const Node& node, const TensorType& from, const TensorType& to) {
  if (!is_op(node, "Reshape") && !is_op(node, "Flatten")) return false;
  return !node.epilogue && from.has_rank && to.has_rank && to.rank() == 2 && same_dim(from.dims[0], to.dims[0]);
}

std::optional<Match> match(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool is_gemm = is_op(node, "Gemm");
  if ((!is_gemm && !is_op(node, "MatMul")) || node.epilogue) return std::nullopt;
  if (is_gemm && node.attributes.get_int("transA", 0) != 0) return std::nullopt;
  Match found;
  found.by_columns = is_gemm && node.attributes.get_int("transB", 0) != 0;
  found.flatten = graph.value(node.inputs[0]).producer;
  if (found.flatten == NodeId::none || !rewriter.is_live(found.flatten)) return std::nullopt;
  const Node& flatten = graph.node(found.flatten);
  if (flatten.inputs.empty() || flatten.inputs[0] == ValueId::none) return std::nullopt;
  const TensorType& turned = graph.value(flatten.inputs[0]).type;
  if (!is_flattening(flatten, turned, graph.value(node.inputs[0]).type)) return std::nullopt;
  found.transpose = rewriter.producer_if(flatten.inputs[0], "Transpose");
  if (found.transpose == NodeId::none || rewriter.only_user(flatten.inputs[0]) != found.flatten ||
      rewriter.only_user(node.inputs[0]) != id) {
    return std::nullopt;
  }
  found.perm = graph.node(found.transpose).attributes.get_ints("perm");
  if (static_cast<int>(found.perm.size()) != turned.rank() || found.perm.size() < 3 || found.perm[0] != 0) {
    return std::nullopt;
  }
  for (size_t axis = 1; axis < found.perm.size(); ++axis) {
    if (!turned.dims[axis].known() || turned.dims[axis].extent < 1) return std::nullopt;
    found.extents.push_back(turned.dims[axis].extent);
    found.rows *= turned.dims[axis].extent;
  }
  const Tensor weights = constant_of(graph, node.inputs[1]);
  if (weights.dtype() != DType::f32 || weights.rank() != 2 || weights.size() == 0 ||
      rewriter.only_user(node.inputs[1]) != id) {
    return std::nullopt;
  }
  return weights.dims()[found.by_columns ? 1 : 0] == found.rows ? std::optional(found) : std::nullopt;
}

// Nodes over the constant: they are folded next.
void rewrite(Rewriter& rewriter, const OpLookup& ops, NodeId id, const Match& found) {
  const Graph& graph = rewriter.graph();
  Rearranger rearranger(rewriter, ops, id);
  const ValueId weights = graph.node(id).inputs[1], x = graph.node(found.transpose).inputs[0];
  const Dims dims = graph.value(weights).constant.dims();
  Dims apart(found.extents.begin(), found.extents.end());
  apart.insert(found.by_columns ? apart.begin() : apart.end(), dims[found.by_columns ? 0 : 1]);
  const int64_t shift = found.by_columns ? 0 : 1;  // the axis of results stands before the others, or behind them
  Ints order;
  const Ints back = inverse_order(found.perm);
  for (size_t axis = 1; axis < back.size(); ++axis) order.push_back(back[axis] - shift);
  order.insert(found.by_columns ? order.begin() : order.end(),
               found.by_columns ? 0 : static_cast<int64_t>(order.size()));
  const ValueId wide = rearranger.reshaped(weights, apart);
  const ValueId turned = rearranger.reshaped(rearranger.transposed(wide, order), dims);
  const ValueId plain = rearranger.reshaped(x, {0, found.rows});
  rewriter.set_input(id, 0, plain);
  rewriter.set_input(id, 1, turned);
  rewriter.erase(found.flatten);
  rewriter.erase(found.transpose);
}

}  // namespace

bool turn_weights(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!rewriter.is_live(id)) continue;
    if (const auto found = match(rewriter, graph, id)) rewrite(rewriter, context.ops, id, *found);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
