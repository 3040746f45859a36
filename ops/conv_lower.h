#pragma once
// Shared by the operators of def/convolution.cpp and def/conv_transpose.cpp: from a node to a direct convolution's
// step.
#include <optional>

#include "ops/conv_problem.h"
#include "ops/lower.h"
#include "ops/window.h"

namespace lathe {

// Taps of a convolution along one axis of the window.
ConvAxis conv_axis(const Window& window, size_t axis, int64_t in, int64_t out);
// The phases of a transposed convolution along one axis; together they write each output once.
std::vector<ConvAxis> conv_transpose_axes(const Window& window, size_t axis, int64_t in, int64_t out);

// What a node Conv of 1 or 2 spatial axes computes: channels, windows and its one phase.
ConvProblem conv_problem_of(const LowerContext& context);
// All operands are float32 and none is empty.
bool has_float_types(const LowerContext& context);
// Input 2 in whole blocks: a packed constant, the input itself, or scratch that a step fills.
BufferId bind_bias(const LowerContext& context, int64_t channels, int lanes);
// What the level allows.
void set_accuracy(ConvProblem& problem, Accuracy accuracy);
// Threads worth waking up.
int conv_threads(double flop, const Target& target);

// A transposed convolution whose windows do not overlap (kernel = stride, no padding) is a pointwise convolution to
// `problem.out_channels` = channels * y * x, each window lying together, whose results are then spread over the
// picture.
struct PixelShuffle {
  int64_t channels = 1, y = 1, x = 1;  // of the node's output; the window
};
// Whether it pays and can be: a plain output of few channels, and an epilogue that is the same for all channels.
bool can_shuffle_pixels(const LowerContext& context, const PixelShuffle& shuffle);

// Lowers a convolution of 1 or 2 spatial axes (given as y and x; y is one pixel high for one axis). `problem` needs its
// channels, windows, `is_transposed` and phases; layouts, bias and epilogue are read from the node. False: not these
// types.
bool lower_conv(LowerContext& context, ConvProblem problem, const std::optional<PixelShuffle>& shuffle = std::nullopt);

}  // namespace lathe
