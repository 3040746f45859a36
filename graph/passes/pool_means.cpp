// A mean or maximum over all pixels is a pool, which takes blocked channels; and where its axes are dropped, a Reshape
// behind it, which costs nothing.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kPoolVersion = 1, kFlattenVersion = 13;

bool is_over_all_pixels(const Graph& graph, const Node& node, int rank) {
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (input_or_none(node, 1) != ValueId::none) {
    const auto given = integers_of(graph, node.inputs[1]);
    if (!given) return false;
    axes = *given;
  }
  for (int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  std::sort(axes.begin(), axes.end());
  if (static_cast<int>(axes.size()) != rank - 2) return false;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != static_cast<int64_t>(i) + 2) return false;
  }
  return true;
}

// Rows of sequences are reduced as they lie; those of convolutions along a line lie in blocks of channels.
bool is_convolved(const Graph& graph, ValueId value) {
  constexpr int kMostSteps = 4;  // of activations behind a convolution
  for (int step = 0; step < kMostSteps; ++step) {
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::none) return false;
    const Node& node = graph.node(producer);
    if (is_op(node, "Conv")) return true;
    if (node.op->express == nullptr || node.inputs.empty()) return false;
    value = node.inputs[0];
  }
  return false;
}

bool replace(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  const bool is_mean = is_op(node, "ReduceMean");
  if ((!is_mean && !is_op(node, "ReduceMax")) || node.epilogue || node.outputs[0] == ValueId::none) return false;
  const ValueId x = node.inputs[0], result = node.outputs[0];
  const TensorType type = graph.value(x).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 3) return false;
  if (type.rank() == 3 && !is_convolved(graph, x)) return false;
  if (!is_over_all_pixels(graph, node, type.rank())) return false;
  const OpSchema *pool = context.ops.find("", is_mean ? "GlobalAveragePool" : "GlobalMaxPool", kPoolVersion),
                 *flatten = context.ops.find("", "Flatten", kFlattenVersion);
  if (pool == nullptr || flatten == nullptr) return false;
  const bool keeps_axes = node.attributes.get_int("keepdims", 1) != 0;
  ValueId pooled = result;
  if (!keeps_axes) {
    TensorType small = type;
    for (size_t i = 2; i < small.dims.size(); ++i) small.dims[i] = {1, ""};
    pooled = rewriter.add_value(node.name, small);
  }
  rewriter.erase(id);
  rewriter.add({.op = pool, .version = kPoolVersion, .name = "", .inputs = {x}, .outputs = {pooled}}, id);
  if (!keeps_axes) {
    rewriter.add({.op = flatten, .version = kFlattenVersion, .name = "", .inputs = {pooled}, .outputs = {result}}, id);
  }
  return true;
}

}  // namespace

bool pool_means(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { replace(rewriter, context, id); });
}

}  // namespace lathe::passes
