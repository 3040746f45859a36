// Taps at the border of a window that never meet a pixel, only what is padded around a small picture, are no work: a
// 3x3 window over one pixel is a 1x1 window, and so is one that is dilated beyond the picture.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

// Longer windows stay as they are: their kernels leave out the taps that meet no pixel, tile by tile, and each length
// of a sound would have weights of its own (those of wav2vec2's positions are 19 MB).
constexpr int64_t kLongest = 32;

struct Axis {
  int64_t in = 0, out = 0;
  int64_t window = 1, dilation = 1, stride = 1;
  int64_t before = 0, behind = 0;  // pads
  int64_t first = 0, count = 1;    // taps that stay

  bool meets_pixels(int64_t tap) const {
    const int64_t begin = tap * dilation - before;
    const int64_t result = begin >= 0 ? 0 : (-begin + stride - 1) / stride;  // the first one that is not before
    return result < out && begin + result * stride < in;
  }

  // Pads do not become negative.
  void trim() {
    count = window;
    const Axis whole = *this;
    while (count > 1 && behind >= dilation && !meets_pixels(first + count - 1)) {
      --count;
      behind -= dilation;
    }
    int64_t left = before;
    while (count > 1 && left >= dilation && !meets_pixels(first)) {
      ++first;
      --count;
      left -= dilation;
    }
    before = left;
    if (count == 1) dilation = 1;
    if (count > kLongest) *this = whole;
  }
};

std::optional<std::vector<Axis>> axes_of(const Graph& graph, const Node& conv) {
  const TensorType &x = graph.value(conv.inputs[0]).type, &y = graph.value(conv.outputs[0]).type;
  const Dims& weights = graph.value(conv.inputs[1]).constant.dims();
  const size_t rank = weights.size() - 2;
  const Ints ones(rank, 1), pads = conv.attributes.get_ints("pads"),
                            strides = conv.attributes.get_ints("strides", ones),
                            dilations = conv.attributes.get_ints("dilations", ones);
  if (conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" || pads.size() != 2 * rank) return std::nullopt;
  if (x.dims.size() != weights.size() || y.dims.size() != weights.size()) return std::nullopt;
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    if (x.dims[i + 2].extent < 1 || y.dims[i + 2].extent < 1) return std::nullopt;
    axes.push_back({.in = x.dims[i + 2].extent,
                    .out = y.dims[i + 2].extent,
                    .window = weights[i + 2],
                    .dilation = dilations[i],
                    .stride = strides[i],
                    .before = pads[i],
                    .behind = pads[rank + i]});
  }
  return axes;
}

Tensor trimmed(const Tensor& weights, const std::vector<Axis>& axes) {
  Dims dims{weights.dims()[0], weights.dims()[1]};
  std::vector<int64_t> kept{0};  // places in a window
  for (const Axis& axis : axes) {
    dims.push_back(axis.count);
    std::vector<int64_t> next;
    for (const int64_t place : kept) {
      for (int64_t i = 0; i < axis.count; ++i) next.push_back(place * axis.window + axis.first + i);
    }
    kept = std::move(next);
  }
  Tensor result(DType::f32, dims);
  const int64_t windows = dims[0] * dims[1], taps = weights.size() / windows;
  const float* from = weights.data<float>();
  float* to = result.mutable_data<float>();
  for (int64_t i = 0; i < windows; ++i, from += taps) {
    for (const int64_t place : kept) *to++ = from[place];
  }
  return result;
}

void trim(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  if (!is_op(graph.node(id), "Conv") || graph.node(id).outputs[0] == ValueId::none) return;
  const ValueId kernel = graph.node(id).inputs[1];
  const Tensor weights = constant_of(graph, kernel);
  if (weights.dtype() != DType::f32 || weights.rank() < 3 || weights.size() == 0) return;
  std::optional<std::vector<Axis>> axes = axes_of(graph, graph.node(id));
  if (!axes) return;
  for (Axis& axis : *axes) axis.trim();
  if (std::all_of(axes->begin(), axes->end(), [](const Axis& axis) { return axis.count == axis.window; })) return;

  Ints window, dilations, pads, behind;
  for (const Axis& axis : *axes) {
    window.push_back(axis.count);
    dilations.push_back(axis.dilation);
    pads.push_back(axis.before);
    behind.push_back(axis.behind);
  }
  pads.insert(pads.end(), behind.begin(), behind.end());
  rewriter.set_input(id, 1, rewriter.add_constant(graph.value(kernel).name, trimmed(weights, *axes)));
  Node& conv = graph.node(id);
  conv.attributes.set("kernel_shape", window);
  conv.attributes.set("dilations", dilations);
  conv.attributes.set("pads", pads);
}

}  // namespace

bool trim_windows(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [](Rewriter& rewriter, NodeId id) { trim(rewriter, id); });
}

}  // namespace lathe::passes
