#pragma once
#include <cstddef>
#include <vector>

#include "ops/lower.h"

namespace lathe {

// Where each planned buffer lies in one arena. Buffers whose lives do not overlap share memory.
struct MemoryPlan {
  static constexpr size_t kNotInArena = ~size_t{0};
  std::vector<size_t> offsets;  // by BufferId, of roots and of what lies inside them; kNotInArena: external or fixed
  size_t arena_bytes = 0;
};

// Grants in-place writes (Step::in_place) where the read ends its life, then places the largest buffers first, each at
// the lowest free offset (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
// Changes `lowered`: granted in-place buffers become views of what they overwrite.
MemoryPlan plan_memory(LoweredGraph& lowered);

}  // namespace lathe
