#pragma once
// Transposed convolutions to few planes whose windows overlap: one pointwise convolution takes every pixel to all
// places of its window, whole blocks of channels, and where windows overlap their places are added up.
#include "ops/conv/conv_node.h"
#include "ops/lower.h"

namespace lathe {

// Of a ConvTranspose over pictures. False: it does not pay, or cannot be.
bool lower_folded(LowerContext& context, const ConvNode& conv);

}  // namespace lathe
