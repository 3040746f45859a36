#pragma once
// Shared by the operators of def/convolution.cpp and def/conv_transpose.cpp: from a node to a direct convolution's
// step.
#include "ops/conv_problem.h"
#include "ops/lower.h"
#include "ops/window.h"

namespace lathe {

// Taps of a convolution along one axis of the window.
ConvAxis conv_axis(const Window& window, size_t axis, int64_t in, int64_t out);
// The phases of a transposed convolution along one axis; together they write each output once.
std::vector<ConvAxis> conv_transpose_axes(const Window& window, size_t axis, int64_t in, int64_t out);

// Lowers a convolution of 1 or 2 spatial axes (given as y and x; y is one pixel high for one axis). `problem` needs its
// channels, windows, `is_transposed` and phases; layouts, bias and epilogue are read from the node. False: not these
// types.
bool lower_conv(LowerContext& context, ConvProblem problem);

}  // namespace lathe
