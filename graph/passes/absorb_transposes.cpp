// Transposes around a MatMul become a way to step through its operands (lathe::MatMulViews).
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

class Absorber {
 public:
  Absorber(Rewriter& rewriter, const OpSchema& schema) : rewriter_(rewriter), schema_(schema) {}

  void try_product(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    const Graph& graph = rewriter_.graph();
    if (!is_op(node, "MatMul") || node.outputs[0] == ValueId::none) return;
    for (size_t slot = 0; slot < 2; ++slot) {
      const TensorType& type = graph.value(node.inputs[slot]).type;
      if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 2) return;
    }
    absorbed_.assign(3, NodeId::none);
    perms_.assign(3, Perm());
    for (size_t slot = 0; slot < 2; ++slot) absorb_input(node, slot);
    absorb_output(node);
    if (perms_[0].empty() && perms_[1].empty() && perms_[2].empty()) return;
    rebuild(id);
  }

 private:
  void absorb_input(const Node& node, size_t slot) {
    const Graph& graph = rewriter_.graph();
    const NodeId transpose = rewriter_.producer_if(node.inputs[slot], "Transpose");
    // Other readers need the transposed tensor anyway.
    if (transpose == NodeId::none || rewriter_.only_user(node.inputs[slot]) == NodeId::none) return;
    if (node.inputs[0] == node.inputs[1] || graph.value(graph.node(transpose).inputs[0]).is_constant()) return;
    const Perm perm = order_of(graph, graph.node(transpose));
    const size_t rank = perm.size();
    if (rank < 2 || static_cast<int>(rank) != graph.value(graph.node(transpose).inputs[0]).type.rank()) return;
    const auto last = static_cast<int64_t>(rank) - 1;
    // Kernels stream whole rows: of A along k, of B along n, or along k of a transposed B.
    if (perm[rank - 1] != last && (slot == 0 || perm[rank - 2] != last)) return;
    absorbed_[slot] = transpose;
    perms_[slot] = perm;
  }

  void absorb_output(const Node& node) {
    const Graph& graph = rewriter_.graph();
    const NodeId user = rewriter_.only_user(node.outputs[0]);
    if (user == NodeId::none || !is_op(graph.node(user), "Transpose") || graph.node(user).epilogue) return;
    // What is fused behind the product spreads along the product's own axes.
    if (node.epilogue) return;
    const Perm perm = order_of(graph, graph.node(user));
    const int rank = graph.value(node.outputs[0]).type.rank();
    if (perm.size() < 2 || static_cast<int>(perm.size()) != rank || perm.back() != rank - 1) return;
    absorbed_[2] = user;
    perms_[2] = perm;
  }

  void rebuild(NodeId id) {
    Graph& graph = rewriter_.graph();
    Node made = graph.node(id);
    made.op = &schema_;
    made.version = 1;
    if (made.fused_from.empty()) made.fused_from = "MatMul";
    static constexpr const char* kNames[] = {"perm_a", "perm_b", "perm_y"};
    for (size_t i = 0; i < 3; ++i) {
      if (!perms_[i].empty()) made.attributes.set(kNames[i], perms_[i]);
      if (i < 2 && absorbed_[i] != NodeId::none) made.inputs[i] = graph.node(absorbed_[i]).inputs[0];
    }
    const ValueId result = absorbed_[2] != NodeId::none ? graph.node(absorbed_[2]).outputs[0] : made.outputs[0];
    made.outputs = {ValueId::none};
    const NodeId last = absorbed_[2] != NodeId::none ? absorbed_[2] : id;
    if (last != id) rewriter_.erase(id);
    rewriter_.erase(last);
    for (size_t i = 0; i < 2; ++i) {
      if (absorbed_[i] != NodeId::none) rewriter_.erase(absorbed_[i]);
    }
    rewriter_.move_output(result, rewriter_.add(std::move(made), last));
  }

  Rewriter& rewriter_;
  const OpSchema& schema_;
  std::vector<NodeId> absorbed_;  // in front of inputs 0 and 1, behind the output
  std::vector<Perm> perms_;
};

}  // namespace

bool absorb_transposes(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "MatMulViews", 1);
  if (schema == nullptr) return false;
  Rewriter rewriter(graph);
  Absorber absorber(rewriter, *schema);
  return rewrite_each(rewriter, [&](NodeId id) { absorber.try_product(id); });
}

}  // namespace lathe::passes
