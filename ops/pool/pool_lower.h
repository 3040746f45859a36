#pragma once
#include "jit/kernels/pool/pool.h"
#include "ops/lower.h"

namespace lathe {

// Pooling of float32, and of bytes for maxima, over blocked channels and one to three spatial axes; of whole planes
// also over plain ones. False: not these.
bool lower_pool(LowerContext& context, PoolKind kind);

}  // namespace lathe
