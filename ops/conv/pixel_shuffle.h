#pragma once
// Transposed convolutions whose windows do not overlap, as a pointwise convolution and a step that spreads its results.
#include "ops/lower.h"

namespace lathe {

// A transposed convolution whose windows do not overlap (kernel = stride, no padding) is a pointwise convolution to
// `problem.out_channels` = channels * y * x, each window lying together, whose results are then spread over the
// picture.
struct PixelShuffle {
  int64_t channels = 1, y = 1, x = 1;  // of the node's output; the window
};
// Whether it pays and can be: a plain output of few channels, and an epilogue that is the same for all channels.
bool can_shuffle_pixels(const LowerContext& context, const PixelShuffle& shuffle);

// One bias for each pixel of the windows, of the constant input 2.
BufferId bind_shuffled_bias(const LowerContext& context, const PixelShuffle& shuffle, int lanes);
// From the blocked results of the pointwise convolution (`dims`: of its input) to the plain picture.
Step shuffle_step(BufferId blocked, BufferId plain, const Dims& dims, const PixelShuffle& shuffle, int lanes,
                  int threads);

}  // namespace lathe
