#pragma once
// Where a row of float32 first goes beyond a threshold: what lets a selection skip all that cannot be chosen.
#include <cstdint>

#include "jit/kernel.h"
#include "jit/kernels/select/beyond.h"
#include "src/base/cpu.h"

namespace lathe {

// Returns how many elements may be skipped, in whole vectors: none of them is beyond. The next vector has one that is
// (or a NaN), or it would pass the row's end. Requires: count >= 0; nothing behind `count` elements is read.
using FindBeyondFn = int64_t(const float* row, int64_t count, const float* threshold);

Kernel<FindBeyondFn> find_beyond_kernel(Isa isa, SelectOrder order);

}  // namespace lathe
