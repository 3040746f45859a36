#pragma once
// The windows of pooling, as its inference, its references and its kernels read them.
#include "jit/kernels/conv/conv_shape.h"
#include "ops/lower.h"
#include "ops/window.h"

namespace lathe {

bool is_global_pool(const Node& node);
// These throw std::invalid_argument.
void check_pool_rank(size_t rank);
Window read_pool_attributes(const Node& node, size_t axes);
// The window with explicit pads. For global pooling, the whole plane.
Window read_pool(const Node& node, const Dims& in);

// One axis of the window; the extents are those of whole tensors.
ConvAxis pool_axis(const Window& window, size_t axis, const Dims& in, const Dims& out);
// The windows along the last one or two spatial axes, over blocks of channels.
ConvShape pool_windows(const LowerContext& context);

}  // namespace lathe
