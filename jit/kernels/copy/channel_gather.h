#pragma once
// Lanes of several channel blocks into one: to[pixel][lane] = source(lane)[pixel][index(lane)]. What shuffles channels,
// joins parts that are no whole blocks, and takes them apart.
#include <array>
#include <cstdint>
#include <string>
#include <variant>
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
  // Of sources, where elements are of 32 bits: no two of a group are read at the same lane, so that they are blended
  // first and permuted together.
  std::vector<std::vector<int>> groups = {};
  bool operator==(const ChannelGatherPlan&) const = default;
};
std::string to_string(const ChannelGatherPlan& plan);

// By source: which lanes of the result come from it (-1; else 0), and from which of its lanes. Kernels read one of the
// forms below.
struct ChannelGatherTable {
  std::array<std::array<int32_t, 16>, kMostGatherSources> index = {}, lanes = {};
  std::array<int32_t, 16> written = {};  // lanes that any source gives

  // Lane `to` of the result is lane `from` of a source.
  void set(size_t source, int to, int from);
  uint32_t lanes_read(size_t source) const;  // a bit for each
};

// A few groups that ChannelGatherPlan allows.
std::vector<std::vector<int>> groups_of(const ChannelGatherTable& table, int sources);

// For AVX2: by group, which of its lanes goes to each lane of the result; masks are lanes of -1.
struct MaskedGatherTable {
  using Lanes = std::array<int32_t, 8>;
  alignas(32) std::array<Lanes, kMostGatherSources> index = {};
  std::array<Lanes, kMostGatherSources> results = {};  // lanes that a group gives
  std::array<Lanes, kMostGatherSources> sources = {};  // lanes that are read
  Lanes written = {};                                  // lanes that any source gives

  MaskedGatherTable(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups);
};

// For AVX-512: by pair of groups, where each lane of the result lies in both, one behind the other.
struct BlendedGatherTable {
  static constexpr size_t kLanes = 16;
  alignas(64) std::array<std::array<int32_t, kLanes>, (kMostGatherSources + 1) / 2> index = {};
  std::array<uint16_t, (kMostGatherSources + 1) / 2> results = {};  // lanes that a pair gives, a bit for each
  std::array<uint16_t, kMostGatherSources> sources = {};            // lanes that are read
  uint16_t written = 0;

  BlendedGatherTable(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups);
};

// For the lanes of 16 bytes: one pixel of 16 lanes, or two of 8.
struct ByteGatherTable {
  static constexpr uint8_t kNone = 0x80;  // vpshufb gives 0
  alignas(16) std::array<std::array<uint8_t, 16>, kMostGatherSources> index = {};
  alignas(16) std::array<uint8_t, 16> kept = {};  // 255: a lane that no source gives

  ByteGatherTable(const ChannelGatherTable& table, int lanes);
};

using GatherTableForm = std::variant<ByteGatherTable, MaskedGatherTable, BlendedGatherTable>;
// As the plan's kernel reads it.
GatherTableForm form_of(const ChannelGatherTable& table, const ChannelGatherPlan& plan);
inline const void* address_of(const GatherTableForm& form) {
  return std::visit([](const auto& held) -> const void* { return &held; }, form);
}

struct ChannelGatherArgs {
  const void* table;                                    // address_of() its form
  std::array<const void*, kMostGatherSources> sources;  // blocks: the lanes of one pixel behind those of another
  void* to;
  int64_t pixels;  // >= 1
};
using ChannelGatherFn = void(const ChannelGatherArgs* args);
Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan);

}  // namespace lathe
