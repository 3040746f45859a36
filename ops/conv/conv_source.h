#pragma once
// Copies of a convolution's input, in blocks of channels, into the order in which its kernel reads.
#include <cstdint>
#include <vector>

#include "jit/kernels/conv/conv_shape.h"
#include "lathe/tensor.h"
#include "ops/step.h"

namespace lathe {

// The pixels that a pointwise convolution reads, `source` of `blocks` blocks of `lanes` channels (of all images), side
// by side.
Step take_pixels_step(BufferId source, BufferId target, int64_t blocks, int lanes, const ConvAxis& y, const ConvAxis& x,
                      int threads);

// Pixels among zeros.
struct PaddedPixels {
  int64_t rows, columns;                     // without the zeros
  int64_t top, left, all_rows, all_columns;  // where they begin, and extents with the zeros
};
// `source`, of `blocks` blocks of `lanes` channels (of all images), among zeros.
Step pad_pixels_step(BufferId source, BufferId target, int64_t blocks, int lanes, const PaddedPixels& pixels,
                     int threads);

// The frames of each volume as a problem reads them.
struct FrameOrder {
  std::vector<int64_t> frames;  // by place; -1: zeros. Empty: all, as they lie
  int64_t top = 0, bottom = 0;  // rows of zeros around each
};
// `dims`: [volume][channel][frame][y][x] of `source`, in blocks of `lanes` channels; 1: plain. The target is in the
// order in which the problem reads, lanes behind the last channel being zeros.
Step take_frames_step(BufferId source, BufferId target, const Dims& dims, int lanes, const FrameOrder& order,
                      bool are_outer, int threads);

}  // namespace lathe
