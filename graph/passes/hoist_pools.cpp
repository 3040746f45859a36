// A mean of the pixels of a 1x1 convolution is the 1x1 convolution of the mean: where there are fewer pixels behind the
// pool, it goes first.
#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Below this the convolution costs no more than the wider pool.
constexpr int64_t kFewestChannels = 16;

// Each result is of one pixel of the operand, of several channels.
bool mixes_channels(const Graph& graph, const Node& conv) {
  if (!is_of_pixels(graph, conv) || !has_unit_strides(conv)) return false;
  const TensorType& weights = graph.value(conv.inputs[1]).type;
  return weights.dims[0].extent >= kFewestChannels && weights.dims[1].extent > 1;
}

// The weights of each mean sum up to one: what is added everywhere stays as it is.
bool keeps_summands(const Node& pool) {
  if (is_op(pool, "GlobalAveragePool") || pool.attributes.get_int("count_include_pad", 0) == 0) return true;
  return has_no_pads(pool) && pool.attributes.get_int("ceil_mode", 0) == 0;
}

bool leaves_fewer_pixels(const Graph& graph, const Node& pool) {
  const TensorType &x = graph.value(pool.inputs[0]).type, &y = graph.value(pool.outputs[0]).type;
  if (!x.has_rank || !y.has_rank || x.rank() != y.rank() || x.rank() < 3) return false;
  double before = 1, behind = 1;
  for (size_t axis = 2; axis < x.dims.size(); ++axis) {
    if (!x.dims[axis].known() || !y.dims[axis].known()) {
      // A stride leaves half of them, about; all of an unknown extent are one.
      return is_op(pool, "GlobalAveragePool") || !has_unit_strides(pool);
    }
    before *= static_cast<double>(x.dims[axis].extent);
    behind *= static_cast<double>(y.dims[axis].extent);
  }
  return behind <= 0.75 * before;
}

void hoist(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& pool = graph.node(id);
  const bool is_mean = is_op(pool, "AveragePool") || is_op(pool, "GlobalAveragePool");
  if (!is_mean || pool.epilogue || pool.outputs[0] == ValueId::none) return;
  const ValueId between = pool.inputs[0], result = pool.outputs[0];
  const NodeId before = rewriter.producer_if(between, "Conv");
  if (before == NodeId::none || rewriter.only_user(between) != id || graph.value(between).type.dtype != DType::f32)
    return;
  Node conv = graph.node(before);
  const TensorType& x = graph.value(conv.inputs[0]).type;
  if (!x.has_rank || x.rank() < 3 || !mixes_channels(graph, conv) || !leaves_fewer_pixels(graph, pool)) return;
  if (input_or_none(conv, 2) != ValueId::none && !keeps_summands(pool)) return;

  TensorType type = graph.value(result).type;
  type.dims[1] = x.dims[1];
  const ValueId mean = rewriter.add_value(graph.value(result).name, std::move(type));
  rewriter.set_input(id, 0, conv.inputs[0]);
  rewriter.erase(before);
  rewriter.move_output(mean, id);
  conv.inputs[0] = mean;
  conv.outputs = {result};
  rewriter.add(std::move(conv), id);
}

}  // namespace

bool hoist_pools(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [](Rewriter& rewriter, NodeId id) { hoist(rewriter, id); });
}

}  // namespace lathe::passes
