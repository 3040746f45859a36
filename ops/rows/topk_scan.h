#pragma once
// Selection from one row of neighbouring elements.
#include <cstdint>

#include "jit/kernels/select/beyond.h"
#include "jit/kernels/select/find_beyond.h"
#include "ops/rows/topk_keys.h"
#include "ops/rows/topk_pool.h"

namespace lathe {

constexpr int64_t kTopKBlock = 32;  // elements looked at closely where one of them may be chosen

// One row and what was kept of it.
template <class Element>
struct TopKRow {
  using Bits = typename Element::Bits;
  using Key = typename Element::Key;

  const Bits* elements;
  int64_t extent;
  Key flip;  // 0; -1: small elements come first
  TopKPool<Key>& pool;

  // The first elements, as many as there is room for.
  int64_t fill() const {
    int32_t* places = pool.places_end();
    const int64_t count = fill_keys();
    for (int64_t i = 0; i < count; ++i) places[i] = static_cast<int32_t>(i);
    return count;
  }
  [[gnu::target("avx2")]] int64_t fill_keys() const {
    const int64_t count = std::min(extent, pool.room());
    Key* keys = pool.keys_end();
    for (int64_t i = 0; i < count; ++i) keys[i] = Element::key(elements[i]) ^ flip;
    pool.grow(count);
    return count;
  }

  [[gnu::target("avx2")]] void offer(int64_t at) const {
    for (; at + kTopKBlock <= extent; at += kTopKBlock) {
      Key keys[kTopKBlock];
      Key any = 0;
      for (int64_t i = 0; i < kTopKBlock; ++i) keys[i] = Element::key(elements[at + i]) ^ flip;
      for (int64_t i = 0; i < kTopKBlock; ++i) any |= keys[i] > pool.threshold() ? 1 : 0;
      if (any != 0) offer_few(at, kTopKBlock);
    }
    offer_few(at, extent - at);
  }

  // At most kTopKBlock.
  void offer_few(int64_t at, int64_t count) const {
    if (pool.room() < count) pool.shrink();
    const Key threshold = pool.threshold();
    Key* keys = pool.keys_end();
    int32_t* places = pool.places_end();
    int64_t kept = 0;
    for (int64_t i = at; i < at + count; ++i) {
      const Key key = Element::key(elements[i]) ^ flip;
      keys[kept] = key;
      places[kept] = static_cast<int32_t>(i);
      kept += key > threshold ? 1 : 0;
    }
    pool.grow(kept);
  }
};

// Of float32.
struct FloatScan {
  static constexpr int64_t kListed = 256;  // groups listed at a time: they shall still be near when they are kept
  static constexpr int64_t kMostFew = 128;

  Isa isa = Isa::avx2;
  SelectOrder order = SelectOrder::largest_first;
  Kernel<GroupFirstsFn> group_firsts;
  Kernel<FindGroupsFn> find_groups;
  Kernel<FindBeyondFn> find_beyond;
  Kernel<KeepFn> keep_row;

  static FloatScan make(Isa isa, SelectOrder order);
  explicit operator bool() const { return static_cast<bool>(find_groups); }
  // Fills the pool with what may be chosen. Requires: an extent larger than its capacity. `list`: kListed.
  void run(const TopKRow<Float32Element>& row, int64_t count, int32_t* list) const;
  // So few that hardly any elements are chosen even for a while: run_few() is sooner done.
  static bool are_few(int64_t count, int64_t extent) {
    return count <= 16 || (count <= kMostFew && extent / count >= 256);
  }
  // The places of the first ones, in their order. Requires: 1 <= count <= kMostFew, and no larger than the extent.
  void run_few(const float* row, int64_t extent, int64_t count, int32_t* places) const;
  // The first one; -1: there is a NaN. Requires: extent >= 8.
  int64_t first(const float* row, int64_t extent) const;

 private:
  bool start_above_firsts(const TopKRow<Float32Element>& row, int64_t count) const;
  int64_t scan(const TopKRow<Float32Element>& row, int64_t at, int32_t* list) const;
};

}  // namespace lathe
