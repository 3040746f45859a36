#include "graph/passes/convolution_parts.h"

#include <algorithm>
#include <cstring>

namespace lathe {

bool same_window(const Graph& graph, const Node& a, const Node& b) {
  const auto same = [&](const char* name) { return a.attributes.get_ints(name) == b.attributes.get_ints(name); };
  if (a.version != b.version || !same("strides") || !same("pads") || !same("dilations")) return false;
  if (a.attributes.get_string("auto_pad", "NOTSET") != b.attributes.get_string("auto_pad", "NOTSET")) return false;
  const Dims &x = graph.value(a.inputs[1]).constant.dims(), &y = graph.value(b.inputs[1]).constant.dims();
  return std::equal(x.begin() + 1, x.end(), y.begin() + 1, y.end());
}

bool has_no_pads(const Node& node) {
  const std::string mode = node.attributes.get_string("auto_pad", "NOTSET");
  const std::vector<int64_t> pads = node.attributes.get_ints("pads");
  return mode == "VALID" ||
         (mode == "NOTSET" && std::all_of(pads.begin(), pads.end(), [](int64_t count) { return count == 0; }));
}

bool has_unit_strides(const Node& node) {
  const std::vector<int64_t> strides = node.attributes.get_ints("strides");
  return std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 1; });
}

bool is_of_pixels(const Graph& graph, const Node& conv) {
  const TensorType& weights = graph.value(conv.inputs[1]).type;
  if (!weights.has_rank || weights.rank() < 3 || !has_no_pads(conv)) return false;
  return std::all_of(weights.dims.begin() + 2, weights.dims.end(), [](const Dim& dim) { return dim.extent == 1; });
}

Tensor joined_rows(const std::vector<Tensor>& parts, Dims dims) {
  Tensor all(DType::f32, std::move(dims));
  auto* to = static_cast<char*>(all.mutable_raw());
  for (const Tensor& part : parts) {
    std::memcpy(to, part.raw(), part.bytes());
    to += part.bytes();
  }
  return all;
}

Tensor bias_of(const Graph& graph, const Node& convolution) {
  const ValueId bias = input_or_none(convolution, 2);
  if (bias == ValueId::none) return Tensor(DType::f32, {graph.value(convolution.inputs[1]).type.dims[0].extent});
  const Tensor constant = constant_of(graph, bias);
  return constant.defined() && constant.dtype() == DType::f32 ? constant : Tensor();
}

}  // namespace lathe
