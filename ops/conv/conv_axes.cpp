#include "ops/conv/conv_axes.h"
#include "src/base/divide.h"

#include <algorithm>

namespace lathe {

ConvAxis conv_axis(const Window& window, size_t axis, int64_t in, int64_t out) {
  ConvAxis result;
  result.in = in;
  result.out = result.out_extent = out;
  result.stride = window.strides[axis];
  result.taps.clear();
  for (int64_t k = 0; k < window.kernel[axis]; ++k) {
    result.taps.push_back({static_cast<int>(k), k * window.dilations[axis] - window.pads_begin[axis]});
  }
  return result;
}

bool is_idle(const ConvAxis& axis) { return axis.taps == ConvAxis().taps && axis.stride == 1 && axis.in == axis.out; }

// Output y takes kernel tap k from input i where i * stride + k * dilation - pad == y: for each y modulo stride other
// taps.
std::vector<ConvAxis> conv_transpose_axes(const Window& window, size_t axis, int64_t in, int64_t out) {
  std::vector<ConvAxis> phases;
  const int64_t stride = window.strides[axis];
  for (int64_t phase = 0; phase < std::min(stride, out); ++phase) {
    ConvAxis result;
    result.in = in;
    result.out = divide_up(out - phase, stride);
    result.out_extent = out;
    result.out_step = stride;
    result.out_first = phase;
    result.taps.clear();
    for (int64_t k = 0; k < window.kernel[axis]; ++k) {
      const int64_t distance = phase + window.pads_begin[axis] - k * window.dilations[axis];
      if (distance % stride == 0) result.taps.push_back({static_cast<int>(k), distance / stride});
    }
    phases.push_back(std::move(result));
  }
  return phases;
}

}  // namespace lathe
