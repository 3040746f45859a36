#pragma once
#include "jit/kernels/conv_shape.h"
#include "ops/lower.h"

namespace lathe {

// The windows of a pool of 1 or 2 spatial axes, over blocks of channels. By def/pooling.cpp.
ConvShape pool_windows(const LowerContext& context);

}  // namespace lathe
