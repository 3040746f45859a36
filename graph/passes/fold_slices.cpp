// A Slice of pixels behind a convolution, of no more than what its padding has added, becomes less padding: causal
// convolutions are written with padding on both sides whose results on one side are cut off. Behind a transposed
// convolution it becomes more.
#include <algorithm>
#include <limits>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kFar = std::numeric_limits<int32_t>::max();

// How many pixels a Slice takes away, before and behind what is left of each axis of pixels.
struct Cut {
  Ints before, behind;
};

// Of one axis, from start to end; nullopt: not known.
struct Ends {
  int64_t before, behind;
};
std::optional<Ends> ends_of(const Dim& whole, int64_t start, int64_t end) {
  if (start < -kFar || end < -kFar) return std::nullopt;
  if (!whole.known()) {
    if (start < 0 || (end >= 0 && end < kFar)) return std::nullopt;
    return Ends{start, end < 0 ? -end : 0};
  }
  const int64_t extent = whole.extent, from = start < 0 ? start + extent : start, to = end < 0 ? end + extent : end;
  if (from < 0 || to < from) return std::nullopt;
  return Ends{from, std::max<int64_t>(extent - to, 0)};
}

std::optional<Cut> cut_of(const Graph& graph, const Node& slice) {
  const TensorType& type = graph.value(slice.inputs[0]).type;
  if (slice.version < 10 || slice.epilogue || !type.has_rank || type.rank() < 3) return std::nullopt;
  const auto starts = integers_of(graph, slice.inputs[1]), ends = integers_of(graph, slice.inputs[2]);
  const auto axes = integers_of(graph, input_or_none(slice, 3));
  if (!starts || !ends || !axes || starts->size() != axes->size() || ends->size() != axes->size()) return std::nullopt;
  if (const ValueId steps = input_or_none(slice, 4); steps != ValueId::none) {
    const auto each = integers_of(graph, steps);
    if (!each || std::any_of(each->begin(), each->end(), [](int64_t step) { return step != 1; })) return std::nullopt;
  }
  const auto pixels = static_cast<size_t>(type.rank()) - 2;
  Cut cut{Ints(pixels, 0), Ints(pixels, 0)};
  for (size_t i = 0; i < axes->size(); ++i) {
    const int64_t axis = (*axes)[i] < 0 ? (*axes)[i] + type.rank() : (*axes)[i];
    if (axis < 2 || axis >= type.rank()) return std::nullopt;
    const auto at = static_cast<size_t>(axis);
    const auto found = ends_of(type.dims[at], (*starts)[i], (*ends)[i]);
    if (!found) return std::nullopt;
    cut.before[at - 2] = found->before;
    cut.behind[at - 2] = found->behind;
  }
  return cut;
}

// A convolution's geometry, by axis of pixels.
struct Geometry {
  Ints pads, strides, reach;  // reach: pixels from the first tap of a window to the last
};

std::optional<Geometry> geometry_of(const Graph& graph, const Node& conv) {
  const TensorType& weights = graph.value(conv.inputs[1]).type;
  if (!weights.has_rank || weights.rank() < 3 || conv.epilogue || conv.attributes.has("output_shape")) {
    return std::nullopt;
  }
  if (conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET") return std::nullopt;
  const auto axes = static_cast<size_t>(weights.rank()) - 2;
  const Ints ones(axes, 1), dilations = conv.attributes.get_ints("dilations", ones);
  Geometry found{conv.attributes.get_ints("pads", Ints(2 * axes, 0)), conv.attributes.get_ints("strides", ones), {}};
  if (found.pads.size() != 2 * axes || found.strides.size() != axes || dilations.size() != axes) return std::nullopt;
  for (size_t i = 0; i < axes; ++i) {
    const Dim& window = weights.dims[i + 2];
    if (!window.known() || window.extent > kFar || dilations[i] > kFar || found.strides[i] < 1) return std::nullopt;
    found.reach.push_back((window.extent - 1) * dilations[i]);
  }
  return found;
}

// The padding with which the node makes only what the Slice leaves; nullopt: there is none.
std::optional<Ints> pads_for(const Geometry& geometry, const Cut& cut, const TensorType& result, bool is_transposed) {
  const size_t axes = geometry.reach.size();
  if (cut.before.size() != axes) return std::nullopt;
  Ints pads = geometry.pads;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t reach = geometry.reach[i], stride = geometry.strides[i];
    const auto take = [&](int64_t& pad, int64_t count) {
      if (is_transposed) {
        // Kernels need not expect pixels whose whole window is cut off.
        if (count > reach || pad > reach - count) return false;
        pad += count;
        return true;
      }
      if (count > pad / stride) return false;
      pad -= count * stride;
      return pad >= 0;
    };
    if (!take(pads[i], cut.before[i]) || !take(pads[axes + i], cut.behind[i])) return std::nullopt;
    // Something is left, whatever the picture: a Slice may be empty, a convolution's result not.
    const Dim& left = result.dims[i + 2];
    const bool is_left = left.known() ? left.extent > 0 : !is_transposed && pads[i] + pads[axes + i] >= reach;
    if (!is_left) return std::nullopt;
  }
  return pads;
}

void fold(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& slice = graph.node(id);
  if (!is_op(slice, "Slice")) return;
  const ValueId whole = slice.inputs[0], part = slice.outputs[0];
  const NodeId maker = graph.value(whole).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker) || rewriter.only_user(whole) != id) return;
  const bool is_transposed = is_op(graph.node(maker), "ConvTranspose");
  if ((!is_transposed && !is_op(graph.node(maker), "Conv")) || graph.value(whole).type.dtype != DType::f32) return;
  const auto cut = cut_of(graph, slice);
  const auto geometry = geometry_of(graph, graph.node(maker));
  const TensorType& result = graph.value(part).type;
  if (!cut || !geometry || !result.has_rank || result.rank() != graph.value(whole).type.rank()) return;
  auto pads = pads_for(*geometry, *cut, result, is_transposed);
  if (!pads) return;
  graph.node(maker).attributes.set("pads", std::move(*pads));
  graph.node(maker).fused_from = std::string(graph.node(maker).op->name) + "+Slice";
  rewriter.erase(id);
  rewriter.move_output(part, maker);
}

}  // namespace

bool fold_slices(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fold(rewriter, id); });
}

}  // namespace lathe::passes
