#pragma once
// Depthwise convolutions of quantized tensors: the steps that run them on bytes.
#include "ops/conv/conv_int8_operands.h"
#include "ops/conv/conv_node.h"

namespace lathe {

// Of a node that lower_conv_int8() has looked at. `source`: input 0, of type `in`; `target`: in blocks. False, and no
// steps: not a depthwise convolution, or none that the kernels can have.
bool lower_depthwise_int8(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                          const ConvInt8Operands& operands, const TensorType& in, BufferId source, BufferId target);

}  // namespace lathe
