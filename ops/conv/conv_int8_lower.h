#pragma once
// From a node that is a convolution of quantized tensors to the steps that run it on integers.
#include "ops/conv/conv_node.h"
#include "ops/lower.h"

namespace lathe {

// Inputs of the node: x, weights, scale, x_zero, w_zero, bias (int32, in units of the sums). Plain tensors are brought
// into blocks of channels and back. False: groups, or parameters and operands that the kernels lack.
bool lower_conv_int8(LowerContext& context, const ConvNode& conv);

}  // namespace lathe
