#include "ops/conv/conv_node.h"

#include <algorithm>

#include "graph/graph.h"

namespace lathe {
namespace {

int64_t read_groups(const Node& node) {
  const int64_t groups = node.attributes.get_int("group", 1);
  if (groups < 1) throw std::invalid_argument("group is " + std::to_string(groups));
  return groups;
}

void check_ranks(size_t in, size_t weights) {
  if (in < 3) throw std::invalid_argument("input 0 has rank " + std::to_string(in) + ", expected at least 3");
  if (weights != in) {
    throw std::invalid_argument("the weights have rank " + std::to_string(weights) + ", input 0 has " +
                                std::to_string(in));
  }
}

void check_channels(int64_t in, int64_t expected, int64_t groups, int64_t out) {
  if (in != expected) {
    throw std::invalid_argument("input 0 has " + std::to_string(in) + " channels, the weights expect " +
                                std::to_string(expected));
  }
  if (out % groups != 0) {
    throw std::invalid_argument(std::to_string(out) + " output channels do not divide into " + std::to_string(groups) +
                                " groups");
  }
}

Dims tail(const Dims& dims) { return {dims.begin() + 2, dims.end()}; }

// Pads of a transposed convolution, given or derived from the wanted output; returns the output's extent, -1 for one
// that depends on an unknown input.
int64_t transpose_output(Window& window, size_t axis, int64_t in, int64_t extra, int64_t wanted, bool is_upper) {
  if (in < 0) return std::max<int64_t>(wanted, -1);
  const int64_t full = window.strides[axis] * (in - 1) + extra + window.span(axis);
  if (wanted >= 0) {
    const int64_t total = std::max<int64_t>(0, full - wanted);
    window.pads_begin[axis] = is_upper ? total / 2 : total - total / 2;
    window.pads_end[axis] = total - window.pads_begin[axis];
    return wanted;
  }
  const int64_t out = full - window.pads_begin[axis] - window.pads_end[axis];
  if (out < 0) throw std::invalid_argument("the padding leaves no output");
  return out;
}

}  // namespace

std::vector<AttributeSpec> conv_attributes(std::vector<AttributeSpec> more) {
  using Kind = AttributeSpec::Kind;
  for (const char* name : {"dilations", "kernel_shape", "pads", "strides"}) more.push_back({name, Kind::integers});
  more.push_back({"auto_pad", Kind::string});
  more.push_back({"group", Kind::integer});
  return more;
}

ConvNode read_conv(const Node& node, const Dims& in, const Dims& weights) {
  check_ranks(in.size(), weights.size());
  ConvNode conv;
  ConvSizes& sizes = conv.sizes;
  sizes.groups = read_groups(node);
  if (weights[1] > 0 && sizes.groups > in[1] / weights[1] + 1) throw std::invalid_argument("too many groups");
  sizes.batch = in[0];
  sizes.in_channels = in[1];
  sizes.out_channels = weights[0];
  check_channels(in[1], weights[1] * sizes.groups, sizes.groups, weights[0]);
  conv.window = read_window(node, in.size() - 2, tail(weights));
  sizes.in = tail(in);
  resolve_pads(conv.window, sizes.in);
  for (size_t i = 0; i < sizes.in.size(); ++i) sizes.out.push_back(window_output(conv.window, i, sizes.in[i]));
  return conv;
}

ConvNode read_conv_transpose(const Node& node, const Dims& in, const Dims& weights) {
  check_ranks(in.size(), weights.size());
  ConvNode conv;
  ConvSizes& sizes = conv.sizes;
  sizes.groups = read_groups(node);
  sizes.batch = in[0];
  sizes.in_channels = in[1];
  check_channels(in[1], weights[0], sizes.groups, in[1]);
  if (__builtin_mul_overflow(weights[1], sizes.groups, &sizes.out_channels))
    throw std::invalid_argument("too many groups");
  conv.window = read_window(node, in.size() - 2, tail(weights));
  sizes.in = tail(in);
  const size_t axes = sizes.in.size();
  Dims extra = node.attributes.get_ints("output_padding"), wanted = node.attributes.get_ints("output_shape");
  if (extra.empty()) extra.assign(axes, 0);
  // Some models give batch and channels, too.
  if (wanted.size() == axes + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (extra.size() != axes || (!wanted.empty() && wanted.size() != axes)) {
    throw std::invalid_argument("output_padding and output_shape need one value for each spatial axis");
  }
  const auto auto_pad = conv.window.auto_pad;
  const bool is_same = auto_pad == Window::AutoPad::same_upper || auto_pad == Window::AutoPad::same_lower;
  for (size_t i = 0; i < axes; ++i) {
    if (extra[i] < 0 || extra[i] > (1 << 30)) throw std::invalid_argument("output_padding is out of range");
    int64_t target = -1;
    if (!wanted.empty()) target = wanted[i];
    if (wanted.empty() && is_same) target = sizes.in[i] * conv.window.strides[i];
    if (!wanted.empty() && (target < 0 || target > (int64_t{1} << 40))) {
      throw std::invalid_argument("output_shape has the value " + std::to_string(target));
    }
    sizes.out.push_back(
        transpose_output(conv.window, i, sizes.in[i], extra[i], target, auto_pad == Window::AutoPad::same_upper));
  }
  conv.window.auto_pad = Window::AutoPad::explicit_pads;
  return conv;
}

std::optional<ConvNode> known_conv_transpose(const Node& node, const TensorType& in, const TensorType& weights) {
  TensorType one = in;
  if (!in.has_rank || in.rank() < 3 || !weights.is_static()) return std::nullopt;
  if (!in.dims[0].known()) one.dims[0] = {1, ""};
  if (!one.is_static()) return std::nullopt;
  try {
    return read_conv_transpose(node, one.extents(), weights.extents());
  } catch (const std::invalid_argument&) {
    return std::nullopt;  // inference says what is wrong
  }
}

std::vector<Dim> infer_conv_dims(const Node& node, const TensorType& in, const TensorType& weights) {
  if (!in.has_rank && !weights.has_rank) return {};
  const size_t rank = in.has_rank ? in.dims.size() : weights.dims.size();
  if (in.has_rank && weights.has_rank) check_ranks(in.dims.size(), weights.dims.size());
  if (rank < 3) throw std::invalid_argument("input 0 has rank " + std::to_string(rank) + ", expected at least 3");
  std::vector<Dim> dims(rank);
  if (in.has_rank) dims[0] = in.dims[0];
  const int64_t groups = read_groups(node);
  if (weights.has_rank) {
    dims[1] = weights.dims[0];
    if (in.has_rank && in.dims[1].known() && weights.dims[1].known()) {
      int64_t expected = 0;
      if (__builtin_mul_overflow(weights.dims[1].extent, groups, &expected))
        throw std::invalid_argument("too many groups");
      check_channels(in.dims[1].extent, expected, groups, dims[1].known() ? dims[1].extent : groups);
    }
  }
  Dims kernel;
  if (weights.has_rank) {
    for (size_t i = 2; i < rank; ++i) kernel.push_back(weights.dims[i].extent);
    if (std::any_of(kernel.begin(), kernel.end(), [](int64_t k) { return k < 0; })) kernel.clear();
  }
  if (!in.has_rank || (kernel.empty() && !node.attributes.has("kernel_shape"))) return dims;
  const Window window = read_window(node, rank - 2, kernel);
  const std::vector<Dim> out = window_outputs(window, {in.dims.begin() + 2, in.dims.end()});
  std::copy(out.begin(), out.end(), dims.begin() + 2);
  return dims;
}

}  // namespace lathe
