#pragma once
// From a node's window to the taps of its convolution along one axis.
#include <vector>

#include "ops/conv/conv_problem.h"
#include "ops/window.h"

namespace lathe {

// Taps of a convolution along one axis of the window.
ConvAxis conv_axis(const Window& window, size_t axis, int64_t in, int64_t out);
// A window of one pixel that moves to each: the axis plays no part.
bool is_idle(const ConvAxis& axis);
// The phases of a transposed convolution along one axis; together they write each output once.
std::vector<ConvAxis> conv_transpose_axes(const Window& window, size_t axis, int64_t in, int64_t out);

}  // namespace lathe
