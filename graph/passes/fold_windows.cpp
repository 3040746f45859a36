// A convolution to few channels leaves most of their block empty. As a transposed one of stride 1, by windows turned
// round, it is lowered as a pointwise convolution to all places of the window, which fill their blocks, and sums of
// these.
#include <algorithm>
#include <cmath>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

// Multiply-adds of a lane for each output and input channel, as fast algorithms leave them, transforms among them
// (measured: 0.7 of the direct ones of windows without any, half of those of 3x3).
double work_of_direct(const Dims& window) {
  if (window == Dims{3, 3}) return 4.5;
  double taps = 1;
  for (const int64_t extent : window) taps *= static_cast<double>(extent);
  return (window.size() == 1 ? 0.8 : 0.5) * taps;
}

// The same by folding. What is added up costs as much as 24 channels.
double work_of_folding(const Dims& weights, int block) {
  double places = static_cast<double>(weights[0]);
  for (size_t i = 2; i < weights.size(); ++i) places *= static_cast<double>(weights[i]);
  const double blocks = std::ceil(places / block);
  return blocks * (1 + 24 / static_cast<double>(weights[1]));
}

bool pays(const Dims& weights, int block) {
  constexpr double kMargin = 1.3;
  return 2 * weights[0] <= block && weights[1] >= block &&
         kMargin * work_of_folding(weights, block) < work_of_direct(Dims(weights.begin() + 2, weights.end()));
}

// Of float32, its stride and dilation 1; what follows takes no operands but scalars.
bool is_plain(const Graph& graph, const Node& conv) {
  if (!is_op(conv, "Conv") || conv.captures > 0 || conv.attributes.get_int("group", 1) != 1) return false;
  const std::string pads = conv.attributes.get_string("auto_pad", "NOTSET");
  if (pads != "NOTSET" && pads != "VALID") return false;
  for (const char* name : {"strides", "dilations"}) {
    const Ints steps = conv.attributes.get_ints(name);
    if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step != 1; })) return false;
  }
  const auto type = [&](ValueId id) -> const TensorType& { return graph.value(id).type; };
  for (size_t slot = conv.own_input_count(); slot < conv.inputs.size(); ++slot)
    if (!is_scalar(type(conv.inputs[slot]))) return false;
  const ValueId bias = input_or_none(conv, 2);
  if (bias != ValueId::none && conv.own_input_count() > 2 && !graph.value(bias).is_constant()) return false;
  return type(conv.inputs[0]).is_static() && type(conv.inputs[0]).dtype == DType::f32 &&
         type(conv.outputs[0]).dtype == DType::f32;
}

// [out][in][window] as [in][out][window turned round].
Tensor turned(const Tensor& weights) {
  const Dims& dims = weights.dims();
  Dims to = dims;
  std::swap(to[0], to[1]);
  Tensor result(DType::f32, to);
  const int64_t out = dims[0], in = dims[1], taps = weights.size() / (out * in);
  const float* from = weights.data<float>();
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i, from += taps)
      std::reverse_copy(from, from + taps, result.mutable_data<float>() + (i * out + o) * taps);
  }
  return result;
}

// What a transposed convolution cuts off; empty where it would have to add.
Ints pads_of(const Node& conv, const Dims& window) {
  Ints pads = conv.attributes.get_ints("pads");
  pads.resize(2 * window.size(), 0);
  for (size_t i = 0; i < pads.size(); ++i) {
    pads[i] = window[i % window.size()] - 1 - pads[i];
    if (pads[i] < 0) return {};
  }
  return pads;
}

void fold(Rewriter& rewriter, NodeId id, const PassContext& context) {
  Graph& graph = rewriter.graph();
  if (!is_plain(graph, graph.node(id))) return;
  const ValueId kernel = graph.node(id).inputs[1];
  const Tensor weights = constant_of(graph, kernel);
  if (weights.dtype() != DType::f32 || (weights.rank() != 3 && weights.rank() != 4) || weights.size() == 0) return;
  const Dims window(weights.dims().begin() + 2, weights.dims().end());
  const Ints pads = pads_of(graph.node(id), window);
  const OpSchema* transposed = context.ops.find("", "ConvTranspose", graph.node(id).version);
  if (pads.empty() || transposed == nullptr || !pays(weights.dims(), context.channel_block)) return;
  rewriter.set_input(id, 1, rewriter.add_constant(graph.value(kernel).name, turned(weights)));
  Node& conv = graph.node(id);
  conv.op = transposed;
  conv.attributes.set("auto_pad", std::string("NOTSET"));
  conv.attributes.set("kernel_shape", Ints(window));
  conv.attributes.set("pads", pads);
}

}  // namespace

bool fold_windows(Graph& graph, const PassContext& context) {
  if (context.channel_block == 0) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fold(rewriter, id, context); });
}

}  // namespace lathe::passes
