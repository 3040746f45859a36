#pragma once
#include <cstddef>
#include <vector>

#include "ops/lower.h"

namespace lathe {

// Where each planned buffer lies in one arena. Buffers whose lives do not overlap share memory. A core that writes a
// line that another core's cache holds waits for it (7 ns on Zen 4 where the two share an L3 cache, 27 where they do
// not, 0.6 for a line of its own). So for several threads
// - pictures share memory with those of the same size only, plane upon plane (Buffer::plane_bytes): convolutions are
//   split over the pixels, and a line stays with the thread that has these pixels;
// - behind that, every thread has a part of the arena for its own buffers, which is never another's.
// A single thread's own buffers lie among the others: what it has just used is still in its caches.
struct MemoryPlan {
  static constexpr size_t kNotInArena = ~size_t{0};
  std::vector<size_t> offsets;  // by BufferId, of roots and of what lies inside them; kNotInArena: external or fixed
  size_t thread_bytes = 0;      // from the buffer of one thread to that of the next
  size_t arena_bytes = 0;
};

// Grants in-place writes (Step::in_place) where the read ends its life, then places the largest buffers first, each at
// the lowest free offset (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
// Changes `lowered`: granted in-place buffers become views of what they overwrite.
MemoryPlan plan_memory(LoweredGraph& lowered);

}  // namespace lathe
