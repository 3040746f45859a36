#pragma once
// What a step reads that the other threads have written, where these are on another die (StepArgs::are_far).
#include <cstddef>

#include "ops/step.h"

namespace lathe {

// Fetches a picture that each thread will read all of, ahead of its first share. Convolutions read pixel by pixel from
// plane to plane, which the CPU does not fetch ahead: each line that comes from another die would take 200 ns.
inline void fetch_far(const StepArgs& args, const void* picture, size_t bytes) {
  constexpr size_t kMostBytes = 512 << 10;  // beside weights in L2
  constexpr size_t kLine = 64;
  constexpr int kIntoL2 = 2;
  if (!args.are_far || !args.begins_run() || bytes > kMostBytes) return;
  const auto* line = static_cast<const std::byte*>(picture);
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(line + at, 0, kIntoL2);
}

}  // namespace lathe
