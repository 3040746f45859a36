#include "ops/window.h"

#include <algorithm>
#include <stdexcept>

#include "graph/graph.h"

namespace lathe {
namespace {

// No real window is larger; products of two of these cannot overflow.
constexpr int64_t kMostPixels = int64_t{1} << 30;

Dims read_list(const Node& node, const char* name, size_t count, int64_t fallback, int64_t least) {
  Dims values = node.attributes.get_ints(name);
  if (values.empty()) return Dims(count, fallback);
  if (values.size() != count) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(values.size()) + " values, expected " +
                                std::to_string(count));
  }
  for (int64_t value : values) {
    if (value < least || value > kMostPixels) {
      throw std::invalid_argument(std::string(name) + " has the value " + std::to_string(value));
    }
  }
  return values;
}

Window::AutoPad read_auto_pad(const Node& node) {
  const std::string text = node.attributes.get_string("auto_pad", "NOTSET");
  if (text == "NOTSET" || text.empty()) return Window::AutoPad::explicit_pads;
  if (text == "SAME_UPPER") return Window::AutoPad::same_upper;
  if (text == "SAME_LOWER") return Window::AutoPad::same_lower;
  if (text == "VALID") return Window::AutoPad::valid;
  throw std::invalid_argument("auto_pad is '" + text + "', expected NOTSET, SAME_UPPER, SAME_LOWER or VALID");
}

}  // namespace

Window read_window(const Node& node, size_t axes, const Dims& kernel) {
  Window window;
  window.kernel = read_list(node, "kernel_shape", axes, 1, 1);
  if (!node.attributes.has("kernel_shape")) window.kernel = kernel;
  if (window.kernel.size() != axes) throw std::invalid_argument("the kernel's rank does not fit the input's");
  for (int64_t extent : window.kernel) {
    if (extent < 1 || extent > kMostPixels) {
      throw std::invalid_argument("a kernel extent is " + std::to_string(extent));
    }
  }
  if (!kernel.empty() && kernel != window.kernel) {
    throw std::invalid_argument("kernel_shape is " + to_string(window.kernel) + ", the weights have " +
                                to_string(kernel));
  }
  window.strides = read_list(node, "strides", axes, 1, 1);
  window.dilations = read_list(node, "dilations", axes, 1, 1);
  window.auto_pad = read_auto_pad(node);
  Dims pads = read_list(node, "pads", axes * 2, 0, 0);
  if (window.auto_pad != Window::AutoPad::explicit_pads) pads.assign(axes * 2, 0);
  window.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(axes));
  window.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(axes), pads.end());
  return window;
}

void resolve_pads(Window& window, const Dims& spatial) {
  using AutoPad = Window::AutoPad;
  if (window.auto_pad == AutoPad::same_upper || window.auto_pad == AutoPad::same_lower) {
    for (size_t i = 0; i < window.axes(); ++i) {
      const int64_t out = (spatial[i] + window.strides[i] - 1) / window.strides[i];
      const int64_t total = std::max<int64_t>(0, (out - 1) * window.strides[i] + window.span(i) - spatial[i]);
      window.pads_begin[i] = window.auto_pad == AutoPad::same_upper ? total / 2 : total - total / 2;
      window.pads_end[i] = total - window.pads_begin[i];
    }
  }
  window.auto_pad = AutoPad::explicit_pads;
}

int64_t window_output(const Window& window, size_t axis, int64_t in, bool rounds_up) {
  const int64_t room = in + window.pads_begin[axis] + window.pads_end[axis] - window.span(axis);
  if (in == 0) return 0;
  if (room < 0) {
    throw std::invalid_argument("a window of " + std::to_string(window.span(axis)) +
                                " pixels does not fit the input of " + std::to_string(in) + " with its padding");
  }
  const int64_t stride = window.strides[axis];
  if (!rounds_up) return room / stride + 1;
  int64_t out = (room + stride - 1) / stride + 1;
  if ((out - 1) * stride >= in + window.pads_begin[axis]) --out;
  return out;
}

std::vector<Dim> window_outputs(const Window& window, const std::vector<Dim>& spatial, bool rounds_up) {
  std::vector<Dim> out(spatial.size());
  for (size_t i = 0; i < spatial.size(); ++i) {
    const bool is_same =
        window.auto_pad == Window::AutoPad::same_upper || window.auto_pad == Window::AutoPad::same_lower;
    const bool keeps =
        window.strides[i] == 1 && (is_same || window.pads_begin[i] + window.pads_end[i] == window.span(i) - 1);
    if (keeps) {
      out[i] = spatial[i];
    } else if (spatial[i].known()) {
      Window one = window;
      for (Dims* list : {&one.kernel, &one.strides, &one.dilations, &one.pads_begin, &one.pads_end})
        *list = {(*list)[i]};
      resolve_pads(one, {spatial[i].extent});
      out[i].extent = window_output(one, 0, spatial[i].extent, rounds_up);
    }
  }
  return out;
}

}  // namespace lathe
