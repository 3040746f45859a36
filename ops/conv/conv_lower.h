#pragma once
// Shared by the operators of def/convolution.cpp and def/conv_transpose.cpp: from a node to the steps of
// a float convolution.
#include <optional>
#include <span>

#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_volume.h"
#include "ops/conv/pixel_shuffle.h"
#include "ops/lower.h"

namespace lathe {

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

// Lowers a convolution of 1 or 2 spatial axes (given as y and x; y is one pixel high for one axis). `problem` needs its
// channels, windows, `is_transposed` and phases; layouts, bias and epilogue are read from the node. `frames`: as a
// VolumeConv has them. False: not these types.
bool lower_conv(LowerContext& context, ConvProblem problem, const std::optional<PixelShuffle>& shuffle = std::nullopt,
                const FrameOrder& frames = {});
// A convolution and the MaxPool of 2x2 pixels, side by side, that alone reads it, both in blocks: as one step (or its
// parts), if it is one for Winograd's algorithm. False: it is not, or not these types.
bool lower_pooled_conv(std::span<const LowerContext> nodes);
// The same without the node's bias and epilogue: the buffer where results lie in blocks of channels. nullopt: as false.
std::optional<BufferId> lower_bare_conv(const LowerContext& context, ConvProblem problem);

}  // namespace lathe
