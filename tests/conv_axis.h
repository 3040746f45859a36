#pragma once
#include "jit/kernels/conv/conv_shape.h"

namespace lathe::testing {

// A window of so many taps side by side, over `in` pixels with so many zeros before and behind.
inline ConvAxis axis(int64_t in, int taps, int64_t begin_pad, int64_t end_pad, int64_t stride = 1) {
  ConvAxis made;
  made.in = in;
  made.stride = stride;
  made.out = made.out_extent = (in + begin_pad + end_pad - taps) / stride + 1;
  made.taps.clear();
  for (int i = 0; i < taps; ++i) made.taps.push_back({i, i - begin_pad});
  return made;
}

}  // namespace lathe::testing
