#include "graph/passes/linear_map.h"

#include <algorithm>

#include "graph/passes/affine.h"
#include "graph/passes/convolution_parts.h"

namespace lathe {
namespace {

using Axis = LinearMap::Axis;

// The explicit pads; those that follow from the window alone count as such.
std::optional<std::vector<int64_t>> pads_of(const Node& node, const std::vector<Axis>& axes) {
  const std::string mode = node.attributes.get_string("auto_pad", "NOTSET");
  std::vector<int64_t> pads(2 * axes.size(), 0);
  if (mode == "VALID") return pads;
  if (mode == "NOTSET") {
    const std::vector<int64_t> given = node.attributes.get_ints("pads", pads);
    return given.size() == pads.size() ? std::optional(given) : std::nullopt;
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].stride != 1) return std::nullopt;
    const int64_t all = (axes[i].window - 1) * axes[i].dilation, less = all / 2;
    pads[i] = mode == "SAME_LOWER" ? all - less : less;
    pads[axes.size() + i] = all - pads[i];
  }
  return pads;
}

// The axis of a window that holds both.
std::optional<Axis> joint_axis(const Axis& a, const Axis& b) {
  if (a.stride != b.stride || a.slack != b.slack) return std::nullopt;
  if (a.window > 1 && b.window > 1 && a.dilation != b.dilation) return std::nullopt;
  Axis joint = a;
  joint.dilation = a.window > 1 ? a.dilation : b.window > 1 ? b.dilation : 1;
  if ((a.begin - b.begin) % joint.dilation != 0) return std::nullopt;
  joint.begin = std::min(a.begin, b.begin);
  const auto last = [&](const Axis& axis) { return axis.begin + (axis.window - 1) * joint.dilation; };
  const int64_t end = std::max(last(a), last(b));
  joint.window = (end - joint.begin) / joint.dilation + 1;
  // Pads are never negative.
  if (joint.begin > 0 || end + joint.slack < 0) return std::nullopt;
  return joint;
}

// Where each tap of `part` lies in the window of `whole`.
std::vector<int64_t> places_of(const LinearMap& part, const LinearMap& whole) {
  std::vector<int64_t> places{0};
  for (size_t i = 0; i < part.axes.size(); ++i) {
    const int64_t first = (part.axes[i].begin - whole.axes[i].begin) / whole.axes[i].dilation;
    std::vector<int64_t> next;
    for (const int64_t place : places) {
      for (int64_t tap = 0; tap < part.axes[i].window; ++tap)
        next.push_back(place * whole.axes[i].window + first + tap);
    }
    places = std::move(next);
  }
  return places;
}

void add_to(LinearMap& whole, const LinearMap& part) {
  const std::vector<int64_t> places = places_of(part, whole);
  const int64_t taps = whole.taps();
  const double* from = part.weights.data();
  for (int64_t o = 0; o < part.outputs; ++o) {
    const int64_t own = o / (part.outputs / part.groups) * part.inputs,
                  first = o / (whole.outputs / whole.groups) * whole.inputs;
    for (int64_t i = 0; i < part.inputs; ++i) {
      double* to = whole.weights.data() + (o * whole.inputs + own + i - first) * taps;
      for (const int64_t place : places) to[place] += *from++;
    }
    whole.bias[static_cast<size_t>(o)] += part.bias[static_cast<size_t>(o)];
  }
}

}  // namespace

int64_t LinearMap::taps() const {
  int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.window;
  return count;
}

void LinearMap::scale(const std::vector<double>& factors) {
  const auto row = static_cast<size_t>(inputs * taps());
  for (size_t o = 0; o < factors.size(); ++o) {
    for (size_t i = 0; i < row; ++i) weights[o * row + i] *= factors[o];
    bias[o] *= factors[o];
  }
}

std::optional<LinearMap> linear_map_of(const Graph& graph, const Node& node) {
  if (!is_op(node, "Conv") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  const Tensor weights = constant_of(graph, input_or_none(node, 1)), bias = bias_of(graph, node);
  if (weights.dtype() != DType::f32 || weights.rank() < 3 || weights.size() == 0 || !bias.defined())
    return std::nullopt;
  LinearMap map{.outputs = weights.dims()[0], .groups = node.attributes.get_int("group", 1)};
  map.inputs = weights.dims()[1];
  if (map.groups < 1 || map.outputs % map.groups != 0 || bias.size() != map.outputs) return std::nullopt;
  const auto rank = static_cast<size_t>(weights.rank()) - 2;
  const std::vector<int64_t> ones(rank, 1), strides = node.attributes.get_ints("strides", ones),
                                            dilations = node.attributes.get_ints("dilations", ones);
  if (strides.size() != rank || dilations.size() != rank) return std::nullopt;
  for (size_t i = 0; i < rank; ++i)
    map.axes.push_back({.window = weights.dims()[i + 2], .dilation = dilations[i], .stride = strides[i]});
  const auto pads = pads_of(node, map.axes);
  if (!pads) return std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    Axis& axis = map.axes[i];
    axis.begin = -(*pads)[i];
    axis.slack = (*pads)[i] + (*pads)[rank + i] - (axis.window - 1) * axis.dilation;
  }
  map.weights = as_doubles(weights);
  map.bias = as_doubles(bias);
  return map;
}

LinearMap identity_map(int64_t channels, const LinearMap& like) {
  LinearMap map{.outputs = channels, .groups = channels, .inputs = 1};
  map.axes.assign(like.axes.size(), Axis{});
  map.weights.assign(static_cast<size_t>(channels), 1);
  map.bias.assign(static_cast<size_t>(channels), 0);
  return map;
}

std::optional<LinearMap> sum_of(const LinearMap& a, const LinearMap& b) {
  const LinearMap &wide = a.groups <= b.groups ? a : b, &narrow = a.groups <= b.groups ? b : a;
  if (a.outputs != b.outputs || a.groups * a.inputs != b.groups * b.inputs || a.axes.size() != b.axes.size())
    return std::nullopt;
  if (narrow.groups % wide.groups != 0) return std::nullopt;
  LinearMap sum{.outputs = wide.outputs, .groups = wide.groups, .inputs = wide.inputs};
  for (size_t i = 0; i < a.axes.size(); ++i) {
    const std::optional<Axis> axis = joint_axis(a.axes[i], b.axes[i]);
    if (!axis) return std::nullopt;
    sum.axes.push_back(*axis);
  }
  if (sum.cost() > a.cost() + b.cost()) return std::nullopt;
  sum.weights.assign(static_cast<size_t>(sum.outputs * sum.inputs * sum.taps()), 0);
  sum.bias.assign(static_cast<size_t>(sum.outputs), 0);
  add_to(sum, a);
  add_to(sum, b);
  return sum;
}

}  // namespace lathe
