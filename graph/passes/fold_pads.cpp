// A Pad by zeros before a convolution or an average becomes the node's own padding.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool pads_with_zero(const Graph& graph, const Node& pad) {
  if (pad.attributes.get_string("mode", "constant") != "constant") return false;
  if (pad.version < 11) return pad.attributes.get_float("value", 0) == 0;
  if (input_or_none(pad, 3) != ValueId::none) return false;  // axes
  const ValueId value = input_or_none(pad, 2);
  return value == ValueId::none || scalar_of(graph, value) == 0.f;
}

// Before and behind each axis of pixels; nullopt: not known, negative, or of images or channels too.
std::optional<std::vector<int64_t>> pixel_pads(const Graph& graph, const Node& pad, size_t rank) {
  std::vector<int64_t> pads;
  if (pad.version < 11) {
    pads = pad.attributes.get_ints(pad.version < 2 ? "paddings" : "pads");
  } else if (const auto known = integers_of(graph, input_or_none(pad, 1))) {
    pads = *known;
  }
  if (pads.size() != 2 * rank || rank < 3) return std::nullopt;
  if (std::any_of(pads.begin(), pads.end(), [](int64_t count) { return count < 0; })) return std::nullopt;
  if (pads[0] != 0 || pads[1] != 0 || pads[rank] != 0 || pads[rank + 1] != 0) return std::nullopt;
  std::vector<int64_t> result(pads.begin() + 2, pads.begin() + static_cast<std::ptrdiff_t>(rank));
  result.insert(result.end(), pads.begin() + static_cast<std::ptrdiff_t>(rank) + 2, pads.end());
  return result;
}

// Averages that count their padding, or have none of their own so far.
bool can_pad(const Node& node) {
  if (node.epilogue || node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET") return false;
  if (is_op(node, "Conv")) return true;
  if (!is_op(node, "AveragePool") || node.version < 7 || node.attributes.get_int("ceil_mode", 0) != 0) return false;
  const std::vector<int64_t> pads = node.attributes.get_ints("pads");
  const bool has_pads = std::any_of(pads.begin(), pads.end(), [](int64_t count) { return count != 0; });
  return !has_pads || node.attributes.get_int("count_include_pad", 0) != 0;
}

bool fold(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  Node& node = graph.node(id);
  if (!can_pad(node)) return false;
  const NodeId pad = rewriter.producer_if(node.inputs[0], "Pad");
  if (pad == NodeId::none || !rewriter.has_one_use(node.inputs[0]) || rewriter.only_user(node.inputs[0]) != id) {
    return false;
  }
  const ValueId source = graph.node(pad).inputs[0];
  const TensorType& type = graph.value(source).type;
  if (!type.has_rank || type.dtype != DType::f32 || !pads_with_zero(graph, graph.node(pad))) return false;
  const size_t axes = static_cast<size_t>(std::max(type.rank(), 2)) - 2;
  const auto added = pixel_pads(graph, graph.node(pad), axes + 2);
  std::vector<int64_t> pads = node.attributes.get_ints("pads");
  pads.resize(2 * axes, 0);
  if (!added || added->size() != pads.size()) return false;
  // No window may lie in padding alone: kernels need not expect it.
  const std::vector<int64_t> window = node.attributes.get_ints("kernel_shape");
  const std::vector<int64_t> dilations = node.attributes.get_ints("dilations");
  const TensorType* weights = is_op(node, "Conv") ? &graph.value(node.inputs[1]).type : nullptr;
  for (size_t i = 0; i < pads.size(); ++i) {
    pads[i] += (*added)[i];
    const size_t axis = i % axes;
    int64_t extent = axis < window.size() ? window[axis] : -1;
    if (extent < 0 && weights != nullptr && weights->has_rank && axis + 2 < weights->dims.size()) {
      extent = weights->dims[axis + 2].extent;
    }
    const int64_t dilation = axis < dilations.size() ? dilations[axis] : 1;
    if (extent < 1 || pads[i] > (extent - 1) * dilation) return false;
  }
  node.attributes.set("pads", std::move(pads));
  if (is_op(node, "AveragePool")) node.attributes.set("count_include_pad", int64_t{1});
  node.fused_from = "Pad+" + std::string(node.op->name);
  rewriter.set_input(id, 0, source);
  rewriter.erase(pad);
  return true;
}

}  // namespace

bool fold_pads(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fold(rewriter, id); });
}

}  // namespace lathe::passes
