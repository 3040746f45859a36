#pragma once
// Lanes of several channel blocks into one: to[pixel][lane] = source(lane)[pixel][index(lane)]. What shuffles channels,
// joins parts that are no whole blocks, and takes them apart.
#include <array>
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

inline constexpr int kMostGatherSources = 6;

struct ChannelGatherPlan {
  Isa isa = Isa::avx2;
  int sources = 1;          // 1 to kMostGatherSources
  bool is_partial = false;  // only some lanes of the result are written
  bool operator==(const ChannelGatherPlan&) const = default;
};
std::string to_string(const ChannelGatherPlan& plan);

// By source: which lanes of the result come from it (-1; else 0), and from which of its lanes.
struct ChannelGatherTable {
  alignas(64) std::array<std::array<int32_t, 16>, kMostGatherSources> index = {}, lanes = {};
  alignas(64) std::array<int32_t, 16> written = {};  // lanes that any source gives
};

struct ChannelGatherArgs {
  const ChannelGatherTable* table;
  std::array<const float*, kMostGatherSources> sources;  // blocks: vectors, one a pixel
  float* to;
  int64_t pixels;  // >= 1
};
using ChannelGatherFn = void(const ChannelGatherArgs* args);
Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan);

}  // namespace lathe
