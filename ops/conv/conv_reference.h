#pragma once
// Plain convolution of any rank: the oracle, and the fallback for types and shapes without kernels.
#include "ops/window.h"

namespace lathe {

struct ConvSizes {
  int64_t batch, in_channels, out_channels, groups;
  Dims in, out;  // spatial
};

// out[n, o, pixel] = sum of in * weights over the window; `in` and `weights` are called with flat element numbers,
// `store` with the flat number of an output and its sum. Weights are [out][in / groups][window].
template <class Sum, class In, class Weight, class Store>
void convolve(const ConvSizes& sizes, const Window& window, In in, Weight weight, Store store) {
  const size_t axes = window.axes();
  int64_t in_pixels = 1, out_pixels = 1, taps = 1;
  for (size_t i = 0; i < axes; ++i) {
    in_pixels *= sizes.in[i];
    out_pixels *= sizes.out[i];
    taps *= window.kernel[i];
  }
  const int64_t in_each = sizes.in_channels / sizes.groups, out_each = sizes.out_channels / sizes.groups;
  std::vector<std::pair<int64_t, int64_t>> valid;  // input pixel, tap
  for (int64_t pixel = 0; pixel < out_pixels; ++pixel) {
    valid.clear();
    for (int64_t tap = 0; tap < taps; ++tap) {
      int64_t rest_pixel = pixel, rest_tap = tap, at = 0, step = 1;
      bool is_inside = true;
      for (size_t i = axes; i-- > 0;) {
        const int64_t position = rest_pixel % sizes.out[i] * window.strides[i] +
                                 rest_tap % window.kernel[i] * window.dilations[i] - window.pads_begin[i];
        is_inside = is_inside && position >= 0 && position < sizes.in[i];
        at += position * step;
        step *= sizes.in[i];
        rest_pixel /= sizes.out[i];
        rest_tap /= window.kernel[i];
      }
      if (is_inside) valid.emplace_back(at, tap);
    }
    for (int64_t image = 0; image < sizes.batch; ++image) {
      for (int64_t o = 0; o < sizes.out_channels; ++o) {
        Sum sum = 0;
        for (int64_t i = 0; i < in_each; ++i) {
          const int64_t plane = (image * sizes.in_channels + o / out_each * in_each + i) * in_pixels;
          const int64_t filter = (o * in_each + i) * taps;
          for (const auto& [at, tap] : valid)
            sum += static_cast<Sum>(in(plane + at)) * static_cast<Sum>(weight(filter + tap));
        }
        store((image * sizes.out_channels + o) * out_pixels + pixel, o, sum);
      }
    }
  }
}

}  // namespace lathe
