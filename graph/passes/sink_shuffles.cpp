// Shuffled channels that a depthwise convolution with a stride reads are shuffled behind it, where pixels are fewer:
// its weights change places instead.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Of one filter for each channel, and fewer pixels than it reads.
bool is_strided_depthwise(const Node& node, const Tensor& weights) {
  if (!is_op(node, "Conv") || node.epilogue || node.captures > 0) return false;
  if (weights.dtype() != DType::f32 || weights.rank() < 3 || weights.dims()[1] != 1) return false;
  const std::vector<int64_t> strides = node.attributes.get_ints("strides");
  return node.attributes.get_int("group", 1) == weights.dims()[0] &&
         std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride > 1; });
}

// Rows of a constant, one for each channel, for the channels where they lie before they are shuffled.
Tensor unshuffled(const Tensor& rows, int64_t groups) {
  Tensor result(DType::f32, rows.dims());
  const int64_t channels = rows.dims()[0], row = rows.size() / channels;
  for (int64_t channel = 0; channel < channels; ++channel) {
    const int64_t from = channel % groups * (channels / groups) + channel / groups;
    std::copy_n(rows.data<float>() + channel * row, row, result.mutable_data<float>() + from * row);
  }
  return result;
}

void sink(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& conv = graph.node(id);
  if (conv.inputs.size() < 2 || conv.inputs[0] == ValueId::none) return;
  const Tensor weights = constant_of(graph, conv.inputs[1]);
  if (!weights.defined() || !is_strided_depthwise(conv, weights)) return;
  const ValueId shuffled = conv.inputs[0];
  const NodeId maker = graph.value(shuffled).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker)) return;
  const Node& shuffle = graph.node(maker);
  if (!is_lathe_op(shuffle, "ShuffleChannels") || shuffle.epilogue || rewriter.only_user(shuffled) != id) return;
  const ValueId bias = input_or_none(conv, 2);
  const Tensor offsets = constant_of(graph, bias);
  const int64_t channels = weights.dims()[0], groups = shuffle.attributes.get_int("groups", 1);
  if (groups < 1 || channels % groups != 0 || weights.size() == 0) return;
  if (bias != ValueId::none && (offsets.dtype() != DType::f32 || offsets.size() != channels)) return;

  Node first = conv, second = shuffle;
  const ValueId result = conv.outputs[0];
  first.inputs[0] = shuffle.inputs[0];
  first.inputs[1] = rewriter.add_constant(graph.value(conv.inputs[1]).name, unshuffled(weights, groups));
  if (bias != ValueId::none)
    first.inputs[2] = rewriter.add_constant(graph.value(bias).name, unshuffled(offsets, groups));
  first.outputs = {rewriter.add_value(graph.value(result).name, graph.value(result).type)};
  second.inputs = first.outputs;
  second.outputs = {result};
  rewriter.erase(maker);
  rewriter.erase(id);
  rewriter.add(std::move(first), id);
  rewriter.add(std::move(second), id);
}

}  // namespace

bool sink_shuffles(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [](Rewriter& rewriter, NodeId id) { sink(rewriter, id); });
}

}  // namespace lathe::passes
