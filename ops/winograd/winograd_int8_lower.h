#pragma once
// The steps of a convolution of integers by Winograd's method.
#include <memory>

#include "ops/conv/conv_int8_buffers.h"
#include "ops/lower.h"
#include "ops/winograd/winograd_int8_program.h"

namespace lathe {

// The weights, packed once for all specializations. `slot`: their input of the node.
Tensor pack_winograd_int8(const LowerContext& context, const WinogradInt8Program& program, int slot,
                          const ByteMatrix& weights, const ByteZeros& zeros);
void add_winograd_int8_steps(const LowerContext& context, const std::shared_ptr<const WinogradInt8Program>& program,
                             const Tensor& weights, const ConvInt8Buffers& buffers);

}  // namespace lathe
