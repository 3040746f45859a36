// Biases that are added to scores of attention taken apart into rows and columns of a picture (ViTDet, SAM),
//   softmax(reshape(reshape(scores) + by_row + by_column)),
// are added up first: softmax(scores + reshape(by_row + by_column)). Nothing then stands between the product and the
// Softmax that an epilogue cannot hold, and the sum has the form that attention makes for itself (fuse-attention).
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 14;

struct Chain {
  NodeId apart = NodeId::none;  // the Reshape of the scores
  std::vector<NodeId> sums;
  std::vector<ValueId> biases;
};

bool is_plain(const Rewriter& rewriter, const Graph& graph, NodeId id, std::string_view op) {
  return id != NodeId::none && rewriter.is_live(id) && is_op(graph.node(id), op) && !graph.node(id).epilogue;
}

// From `value`, which `user` alone reads, up to the Reshape of the scores.
std::optional<Chain> chain_above(const Rewriter& rewriter, const Graph& graph, ValueId value, NodeId user) {
  constexpr size_t kMostSums = 4;
  const TensorType& type = graph.value(value).type;
  Chain chain;
  while (chain.sums.size() <= kMostSums) {
    const NodeId maker = graph.value(value).producer;
    if (maker == NodeId::none || rewriter.only_user(value) != user) return std::nullopt;
    if (is_plain(rewriter, graph, maker, "Reshape")) {
      chain.apart = maker;
      return chain;
    }
    if (!is_plain(rewriter, graph, maker, "Add")) return std::nullopt;
    const Node& add = graph.node(maker);
    const auto leads_on = [&](ValueId id) {
      const NodeId next = graph.value(id).producer;
      return same_shape(graph.value(id).type, type) &&
             (is_plain(rewriter, graph, next, "Add") || is_plain(rewriter, graph, next, "Reshape"));
    };
    const size_t slot = leads_on(add.inputs[0]) ? 0 : 1;
    if (add.inputs[0] == add.inputs[1] || !leads_on(add.inputs[slot])) return std::nullopt;
    chain.sums.push_back(maker);
    chain.biases.push_back(add.inputs[1 - slot]);
    user = maker;
    value = add.inputs[slot];
  }
  return std::nullopt;
}

// Broadcast over each other the biases have all of `type`, without the scores.
bool cover(const Graph& graph, const std::vector<ValueId>& biases, const TensorType& type) {
  for (int axis = 0; axis < type.rank(); ++axis) {
    const bool is_there = std::any_of(biases.begin(), biases.end(), [&](ValueId id) {
      const TensorType& bias = graph.value(id).type;
      const int own = axis - (type.rank() - bias.rank());
      return own >= 0 && same_dim(bias.dims[static_cast<size_t>(own)], type.dims[static_cast<size_t>(axis)]);
    });
    if (!is_there) return false;
  }
  return true;
}

bool is_product(const Node& node) { return is_op(node, "MatMul") || is_lathe_op(node, "MatMulViews"); }

// A product, perhaps times a constant.
bool are_scores(const Rewriter& rewriter, const Graph& graph, ValueId id) {
  const NodeId maker = graph.value(id).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker)) return false;
  const Node& node = graph.node(maker);
  if (is_product(node)) return true;
  if (!is_one_of(node, {"Mul", "Div"}) || node.epilogue) return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId operand) {
    const NodeId inner = graph.value(operand).producer;
    return inner != NodeId::none && is_product(graph.node(inner));
  });
}

bool gather(Rewriter& rewriter, const OpSchema& schema, NodeId softmax) {
  Graph& graph = rewriter.graph();
  if (!is_plain(rewriter, graph, softmax, "Softmax")) return false;
  const ValueId result = graph.node(softmax).inputs[0];
  const NodeId joining = graph.value(result).producer;
  if (!is_plain(rewriter, graph, joining, "Reshape") || rewriter.only_user(result) != softmax) return false;
  const ValueId apart = graph.node(joining).inputs[0];
  const TensorType type = graph.value(apart).type;
  if (type.dtype != DType::f32 || !type.has_rank) return false;
  const std::optional<Chain> chain = chain_above(rewriter, graph, apart, joining);
  if (!chain || chain->sums.empty()) return false;
  const bool all_ranked = std::all_of(chain->biases.begin(), chain->biases.end(),
                                      [&](ValueId id) { return graph.value(id).type.has_rank; });
  const ValueId scores = graph.node(chain->apart).inputs[0];
  if (!all_ranked || !cover(graph, chain->biases, type) || !are_scores(rewriter, graph, scores)) return false;
  if (!same_shape(graph.value(scores).type, graph.value(result).type)) return false;

  const auto add = [&](ValueId a, ValueId b, ValueId sum) {
    rewriter.add({.op = &schema, .version = kVersion, .name = "", .inputs = {a, b}, .outputs = {sum}}, joining);
  };
  Node reshape = graph.node(joining);
  for (const NodeId id : chain->sums) rewriter.erase(id);
  rewriter.erase(chain->apart);
  rewriter.erase(joining);
  ValueId sum = chain->biases.back();  // the one that was added first
  for (size_t i = chain->biases.size() - 1; i-- > 0;) {
    const bool is_last = i == 0;
    TensorType wide = is_last ? type : TensorType::unranked(DType::f32);
    const ValueId next = rewriter.add_value(graph.value(apart).name, std::move(wide));
    add(sum, chain->biases[i], next);
    sum = next;
  }
  const ValueId joined = rewriter.add_value(graph.value(result).name, graph.value(result).type);
  reshape.inputs[0] = sum;
  reshape.outputs = {joined};
  rewriter.add(std::move(reshape), joining);
  add(scores, joined, result);
  return true;
}

}  // namespace

bool gather_biases(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "Add", kVersion);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { gather(rewriter, *schema, id); });
}

}  // namespace lathe::passes
