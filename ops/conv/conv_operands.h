#pragma once
// The extra inputs of a fused epilogue as blocked kernels read them.
#include <optional>
#include <vector>

#include "jit/kernels/conv/conv_epilogue.h"
#include "ops/lower.h"

namespace lathe {

struct BoundEpilogue {
  ConvEpilogue epilogue;
  std::vector<BufferId> buffers;     // one for each operand
  std::vector<int64_t> batch_bytes;  // from one image to the next; 0: shared by all
};

// Binds the node's epilogue for an output of `dims` stored in blocks of `lanes` channels, all of float32. Operands that
// have another layout or broadcast in an uncommon way are brought into it by a step. nullopt: types that kernels cannot
// take.
std::optional<BoundEpilogue> bind_conv_epilogue(const LowerContext& context, const Dims& dims, int lanes);
// The same for operands of f32, i32, u8 or i8; leaves the expression to the caller.
std::optional<BoundEpilogue> bind_conv_operands(const LowerContext& context, const Dims& dims, int lanes);

// Per-channel values padded with zeros to whole blocks; there are at least `channels`.
Tensor pad_channels(const Tensor& values, int64_t channels, int lanes);
// Of a tensor of `dims` in blocks of `lanes` channels.
size_t blocked_bytes(const Dims& dims, int lanes, DType dtype);

// Steps between plain and blocked storage of `dims` (at least rank 2), of elements of 4 bytes or 1.
Step block_step(BufferId plain, BufferId blocked, const Dims& dims, int lanes, int threads, DType dtype = DType::f32);
Step unblock_step(BufferId blocked, BufferId plain, const Dims& dims, int lanes, int threads, DType dtype = DType::f32);

}  // namespace lathe
