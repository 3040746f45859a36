#pragma once
#include "ops/conv/conv_node.h"
#include "ops/lower.h"

namespace lathe {

// A transposed convolution from channel blocks to few plain planes, as one step (jit/kernels/conv/conv_spread.h).
// Requires: windows that lie side by side and cover the output, one group. False: another window, layout or type, or
// rows too short.
bool lower_spread(LowerContext& context, const ConvNode& conv);

}  // namespace lathe
