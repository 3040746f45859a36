// Channels shuffled by Reshape-Transpose-Reshape become one lathe::ShuffleChannels, which needs no plain layout.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

struct Shuffle {
  ValueId x = ValueId::none;
  int64_t groups = 0;
  NodeId transpose = NodeId::none, reshape = NodeId::none;
};

// [n, c, pixels...] as [n, groups, c / groups, pixels'...], where the pixels may be joined.
std::optional<int64_t> groups_between(const TensorType& whole, const TensorType& apart) {
  if (!whole.has_rank || !apart.has_rank || whole.rank() < 3 || apart.rank() < 4) return std::nullopt;
  const Dim &channels = whole.dims[1], &groups = apart.dims[1], &size = apart.dims[2];
  if (!same_dim(whole.dims[0], apart.dims[0]) || !channels.known() || !groups.known() || !size.known())
    return std::nullopt;
  if (groups.extent < 1 || size.extent < 1 || groups.extent * size.extent != channels.extent) return std::nullopt;
  const TensorType pixels{whole.dtype, true, {whole.dims.begin() + 2, whole.dims.end()}, {}};
  const TensorType others{whole.dtype, true, {apart.dims.begin() + 3, apart.dims.end()}, {}};
  // The same number of elements before and behind the Reshape: with all else equal, the pixels are too.
  if (!same_shape(pixels, others) && others.rank() != 1) return std::nullopt;
  return groups.extent;
}

bool exchanges_groups(const Node& transpose) {
  const std::vector<int64_t> perm = transpose.attributes.get_ints("perm");
  for (size_t i = 0; i < perm.size(); ++i) {
    const int64_t expected = i == 1 ? 2 : i == 2 ? 1 : static_cast<int64_t>(i);
    if (perm[i] != expected) return false;
  }
  return perm.size() >= 4;
}

// `id`: the Reshape that joins the channels again.
std::optional<Shuffle> match(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!is_op(node, "Reshape") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  const NodeId transpose = rewriter.producer_if(node.inputs[0], "Transpose");
  if (transpose == NodeId::none || rewriter.only_user(node.inputs[0]) != id) return std::nullopt;
  if (!exchanges_groups(graph.node(transpose))) return std::nullopt;
  const ValueId apart = graph.node(transpose).inputs[0];
  const NodeId first = rewriter.producer_if(apart, "Reshape");
  if (first == NodeId::none) return std::nullopt;
  const ValueId x = graph.node(first).inputs[0];
  const auto groups = groups_between(graph.value(x).type, graph.value(apart).type);
  if (!groups || !same_shape(graph.value(x).type, graph.value(node.outputs[0]).type)) return std::nullopt;
  return Shuffle{x, *groups, transpose, id};
}

}  // namespace

bool fuse_shuffle(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "ShuffleChannels", 1);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    const std::optional<Shuffle> found = match(rewriter, graph, id);
    if (!found) return;
    Node node{.op = schema, .name = "", .inputs = {found->x}, .outputs = {graph.node(id).outputs[0]}};
    node.attributes.set("groups", found->groups);
    node.fused_from = "Reshape+Transpose+Reshape";
    rewriter.erase(found->transpose);
    rewriter.erase(found->reshape);
    rewriter.add(std::move(node), id);
  });
}

}  // namespace lathe::passes
