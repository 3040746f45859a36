// A chain of matrix products in the cheaper of two orders: (A B) C = A (B C). Products of constants cost nothing.
#include <functional>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Below this there is nothing to win but other roundings.
constexpr double kWorthwhile = 0.9;

bool is_product(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  if (id == NodeId::none || !rewriter.is_live(id)) return false;
  const Node& node = graph.node(id);
  return is_op(node, "MatMul") && !node.epilogue && node.outputs[0] != ValueId::none;
}

bool is_matrix(const TensorType& type) { return type.dtype == DType::f32 && type.has_rank && type.rank() >= 2; }

// All three are stacks of the same extents; or the last two are plain matrices, and the first any stack.
bool stacks_fit(const TensorType& a, const TensorType& b, const TensorType& c) {
  if (b.rank() == 2 && c.rank() == 2) return true;
  if (a.rank() != b.rank() || b.rank() != c.rank()) return false;
  for (int i = 0; i + 2 < a.rank(); ++i) {
    const auto axis = static_cast<size_t>(i);
    if (!same_dim(a.dims[axis], b.dims[axis]) || !same_dim(b.dims[axis], c.dims[axis])) return false;
  }
  return true;
}

struct Costs {
  double left, right;  // multiply-adds of (A B) C and of A (B C), for each matrix of a stack
};

std::optional<Costs> costs_of(const Graph& graph, ValueId a_id, ValueId b_id, ValueId c_id) {
  const TensorType &a = graph.value(a_id).type, &b = graph.value(b_id).type, &c = graph.value(c_id).type;
  if (!is_matrix(a) || !is_matrix(b) || !is_matrix(c) || !stacks_fit(a, b, c)) return std::nullopt;
  const Dim &k = b.dims[b.dims.size() - 2], &p = b.dims.back(), &n = c.dims.back();
  if (k.extent < 1 || p.extent < 1 || n.extent < 1) return std::nullopt;
  const bool is_bc_constant = graph.value(b_id).is_constant() && graph.value(c_id).is_constant();
  // Rows that meet plain matrices may lie in a stack of any extents.
  double m = 1;
  const size_t first = b.rank() == 2 && c.rank() == 2 ? 0 : a.dims.size() - 2;
  for (size_t i = first; i + 1 < a.dims.size(); ++i) {
    if (!a.dims[i].known() && !is_bc_constant) return std::nullopt;
    if (a.dims[i].known()) m *= static_cast<double>(a.dims[i].extent);
  }
  const auto size = [](const Dim& dim) { return static_cast<double>(dim.extent); };
  Costs costs{m * size(k) * size(p) + m * size(p) * size(n), m * size(k) * size(n)};
  if (!is_bc_constant) costs.right += size(k) * size(p) * size(n);
  return costs;
}

// `outer` makes what it made from `inner` and `other` anew, from `x` and `y`, and `inner` x or y from its own.
void rebuild(Rewriter& rewriter, NodeId outer, NodeId inner, const std::vector<ValueId>& inner_inputs,
             TensorType inner_type, const std::function<std::vector<ValueId>(ValueId)>& outer_inputs) {
  Graph& graph = rewriter.graph();
  const ValueId made = rewriter.add_value(graph.value(graph.node(outer).outputs[0]).name, std::move(inner_type));
  Node first = graph.node(inner), second = graph.node(outer);
  const ValueId result = second.outputs[0];
  first.name.clear();
  first.inputs = inner_inputs;
  first.outputs = {made};
  second.inputs = outer_inputs(made);
  rewriter.erase(inner);
  rewriter.erase(outer);
  rewriter.add(std::move(first), outer);
  second.outputs = {result};
  rewriter.add(std::move(second), outer);
}

bool reorder(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  if (!is_product(rewriter, graph, id)) return false;
  const std::vector<ValueId> operands = graph.node(id).inputs;
  for (size_t slot = 0; slot < 2; ++slot) {
    const NodeId inner = graph.value(operands[slot]).producer;
    if (!is_product(rewriter, graph, inner) || !rewriter.has_one_use(operands[slot]) ||
        rewriter.only_user(operands[slot]) != id)
      continue;
    const std::vector<ValueId> parts = graph.node(inner).inputs;
    const ValueId a = slot == 0 ? parts[0] : operands[0], b = slot == 0 ? parts[1] : parts[0],
                  c = slot == 0 ? operands[1] : parts[1];
    const std::optional<Costs> costs = costs_of(graph, a, b, c);
    if (!costs) continue;
    if (slot == 0 && costs->right < kWorthwhile * costs->left) {
      TensorType type = graph.value(b).type;
      type.dims.back() = graph.value(c).type.dims.back();
      rebuild(rewriter, id, inner, {b, c}, std::move(type), [&](ValueId made) { return std::vector{a, made}; });
      return true;
    }
    if (slot == 1 && costs->left < kWorthwhile * costs->right) {
      TensorType type = graph.value(a).type;
      type.dims.back() = graph.value(b).type.dims.back();
      rebuild(rewriter, id, inner, {a, b}, std::move(type), [&](ValueId made) { return std::vector{made, c}; });
      return true;
    }
  }
  return false;
}

}  // namespace

bool order_products(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { reorder(rewriter, id); });
}

}  // namespace lathe::passes
