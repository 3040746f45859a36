#pragma once
// Lanes of several channel blocks into one: to[pixel][lane] = source(lane)[pixel][index(lane)]. What shuffles channels,
// joins parts that are no whole blocks, and takes them apart.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

inline constexpr int kMostGatherSources = 6;

struct ChannelGatherPlan {
  Isa isa = Isa::avx2;
  int sources = 1;          // 1 to kMostGatherSources
  bool is_partial = false;  // only some lanes of the result are written
  bool has_bytes = false;   // elements are bytes, else of 32 bits
  // Of sources, AVX-512 and 32 bits only (there needed): no two of a group are read at the same lane.
  std::vector<std::vector<int>> groups = {};
  bool operator==(const ChannelGatherPlan&) const = default;
};
std::string to_string(const ChannelGatherPlan& plan);

// By source: which lanes of the result come from it (-1; else 0), and from which of its lanes.
struct ChannelGatherTable {
  alignas(64) std::array<std::array<int32_t, 16>, kMostGatherSources> index = {}, lanes = {};
  alignas(64) std::array<int32_t, 16> written = {};  // lanes that any source gives

  // Lane `to` of the result is lane `from` of a source.
  void set(size_t source, int to, int from);
  uint32_t lanes_read(size_t source) const;  // a bit for each
};

// A few groups that ChannelGatherPlan allows.
std::vector<std::vector<int>> groups_of(const ChannelGatherTable& table, int sources);

// The same where the plan has groups: by pair of them, where each lane of the result lies in both, one behind the
// other.
struct BlendedGatherTable {
  static constexpr size_t kLanes = 16;
  alignas(64) std::array<std::array<int32_t, kLanes>, (kMostGatherSources + 1) / 2> index = {};
  std::array<uint16_t, (kMostGatherSources + 1) / 2> results = {};  // lanes that a pair gives, a bit for each
  std::array<uint16_t, kMostGatherSources> sources = {};            // lanes that are read
  uint16_t written = 0;

  BlendedGatherTable(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups);
};

// The same for the lanes of 16 bytes: one pixel of 16 lanes, or two of 8.
struct ByteGatherTable {
  static constexpr uint8_t kNone = 0x80;  // vpshufb gives 0
  alignas(16) std::array<std::array<uint8_t, 16>, kMostGatherSources> index = {};
  alignas(16) std::array<uint8_t, 16> kept = {};  // 255: a lane that no source gives

  ByteGatherTable(const ChannelGatherTable& table, int lanes);
};

struct ChannelGatherArgs {
  const void* table;  // ChannelGatherTable, BlendedGatherTable for groups, ByteGatherTable where elements are bytes
  std::array<const void*, kMostGatherSources> sources;  // blocks: the lanes of one pixel behind those of another
  void* to;
  int64_t pixels;  // >= 1
};
using ChannelGatherFn = void(const ChannelGatherArgs* args);
Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan);

}  // namespace lathe
