#pragma once
// The extra inputs of a fused epilogue as blocked kernels read them.
#include <optional>
#include <vector>

#include "jit/kernels/conv_epilogue.h"
#include "ops/lower.h"

namespace lathe {

struct BoundEpilogue {
  ConvEpilogue epilogue;
  std::vector<BufferId> buffers;     // one for each operand
  std::vector<int64_t> batch_bytes;  // from one image to the next; 0: shared by all
};

// Binds the node's epilogue for an output of `dims` stored in blocks of `lanes` channels. Operands that have another
// layout or broadcast in an uncommon way are brought into it by a step. nullopt: types that kernels cannot take.
std::optional<BoundEpilogue> bind_conv_epilogue(const LowerContext& context, const Dims& dims, int lanes);

// Per-channel values padded with zeros to whole blocks; `count` >= channels.
Tensor pad_channels(const float* values, int64_t channels, int lanes);

// Steps between plain and blocked float32 storage of `dims` (at least rank 2).
Step block_step(BufferId plain, BufferId blocked, const Dims& dims, int lanes, int threads);
Step unblock_step(BufferId blocked, BufferId plain, const Dims& dims, int lanes, int threads);

}  // namespace lathe
