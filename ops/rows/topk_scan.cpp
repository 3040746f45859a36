#include "ops/rows/topk_scan.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace lathe {
namespace {

template <bool IsLargest>
[[gnu::target("avx2")]] inline __m256 further(__m256 a, __m256 b) {
  return IsLargest ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b);
}

// The first of the largest (smallest) elements; -1: one is NaN. Requires: extent >= 8.
template <bool IsLargest>
[[gnu::target("avx2")]] int64_t first_extreme(const float* row, int64_t extent) {
  __m256 best = _mm256_loadu_ps(row + extent - 8), is_nan = _mm256_cmp_ps(best, best, _CMP_UNORD_Q);
  for (int64_t i = 0; i + 8 <= extent; i += 8) {
    const __m256 x = _mm256_loadu_ps(row + i);
    best = further<IsLargest>(best, x);
    is_nan = _mm256_or_ps(is_nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  if (_mm256_movemask_ps(is_nan) != 0) return -1;
  best = further<IsLargest>(best, _mm256_permute2f128_ps(best, best, 1));
  best = further<IsLargest>(best, _mm256_permute_ps(best, 0x4e));
  best = further<IsLargest>(best, _mm256_permute_ps(best, 0xb1));
  int64_t i = 0;
  for (; i + 8 <= extent; i += 8) {
    const int equal = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(row + i), best, _CMP_EQ_OQ));
    if (equal != 0) return i + std::countr_zero(static_cast<unsigned>(equal));
  }
  const float value = _mm256_cvtss_f32(best);
  while (row[i] != value) ++i;
  return i;
}

// A few choices as a heap, whose top is the last one: keys and places as one number, of which the smallest is the
// first.
class FewChoices {
 public:
  FewChoices(const float* row, int64_t count, SelectOrder order) : row_(row), count_(static_cast<size_t>(count)) {
    for (size_t i = 0; i < count_; ++i) heap_[i] = choice_of(order_key(row[i], order), static_cast<int64_t>(i));
    std::make_heap(heap_.begin(), end());
  }

  float threshold() const { return row_[static_cast<uint32_t>(heap_[0])]; }
  void offer(int32_t key, int64_t place) {
    const uint64_t choice = choice_of(key, place);
    if (choice >= heap_[0]) return;
    size_t at = 0;
    for (size_t child = 1; child < count_; child = 2 * at + 1) {
      if (child + 1 < count_ && heap_[child] < heap_[child + 1]) ++child;
      if (choice >= heap_[child]) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = choice;
  }
  void sort_to(int32_t* places) {
    std::sort(heap_.begin(), end());
    for (size_t i = 0; i < count_; ++i) places[i] = static_cast<int32_t>(heap_[i]);
  }

 private:
  static constexpr uint32_t kSign = 0x80000000U;
  static uint64_t choice_of(int32_t key, int64_t place) {
    return static_cast<uint64_t>(~(static_cast<uint32_t>(key) ^ kSign)) << 32 | static_cast<uint64_t>(place);
  }
  uint64_t* end() { return heap_.begin() + count_; }

  const float* row_;
  std::array<uint64_t, FloatScan::kMostFew> heap_;
  size_t count_;
};

// Elements that the last choice does not rule out: NaN, on either side, rules out none.
template <bool IsLargest>
[[gnu::target("avx2")]] unsigned possible(const float* elements, float threshold) {
  const __m256 x = _mm256_loadu_ps(elements), last = _mm256_set1_ps(threshold);
  return static_cast<unsigned>(
      _mm256_movemask_ps(IsLargest ? _mm256_cmp_ps(x, last, _CMP_NLE_UQ) : _mm256_cmp_ps(x, last, _CMP_NGE_UQ)));
}

template <bool IsLargest>
void offer_close(FewChoices& choices, const float* row, int64_t at, int64_t end, SelectOrder order) {
  for (; at + 8 <= end; at += 8) {
    for (unsigned left = possible<IsLargest>(row + at, choices.threshold()); left != 0; left &= left - 1) {
      const int64_t place = at + std::countr_zero(left);
      choices.offer(order_key(row[place], order), place);
    }
  }
  for (; at < end; ++at) choices.offer(order_key(row[at], order), at);
}

}  // namespace

FloatScan FloatScan::make(Isa isa, SelectOrder order) {
  const bool is_largest = order == SelectOrder::largest_first;
  return {isa,
          order,
          group_firsts_kernel(isa, order),
          find_groups_kernel(isa, order),
          find_beyond_kernel(isa, order),
          keep_beyond_kernel(isa, is_largest ? KeepSource::row_largest : KeepSource::row_smallest)};
}

int64_t FloatScan::first(const float* row, int64_t extent) const {
  return order == SelectOrder::largest_first ? first_extreme<true>(row, extent) : first_extreme<false>(row, extent);
}

// Few elements are chosen even for a while: what the threshold rules out is skipped, and each one that it does not
// raises it at once.
void FloatScan::run_few(const float* row, int64_t extent, int64_t count, int32_t* places) const {
  constexpr int64_t kClose = 16;  // elements looked at closely
  FewChoices choices(row, count, order);
  for (int64_t at = count; at < extent;) {
    const float threshold = choices.threshold();
    if (order == SelectOrder::largest_first && threshold != threshold) break;  // nothing is larger than NaN
    at += find_beyond.entry()(row + at, extent - at, &threshold);
    const int64_t end = std::min(extent, at + kClose);
    order == SelectOrder::largest_first ? offer_close<true>(choices, row, at, end, order)
                                        : offer_close<false>(choices, row, at, end, order);
    at = end;
  }
  choices.sort_to(places);
}

void FloatScan::run(const TopKRow<Float32Element>& row, int64_t count, int32_t* list) const {
  int64_t at = 0;
  if (!start_above_firsts(row, count)) {
    at = row.fill();
    row.pool.shrink();
  }
  row.offer(scan(row, at, list));
}

// A threshold from the firsts of groups of the row's beginning, of which there are some times as many as the selection
// wants: what is above it is then little more than that. False: this does not pay, or too few are numbers.
bool FloatScan::start_above_firsts(const TopKRow<Float32Element>& row, int64_t count) const {
  constexpr int64_t kFewestFirsts = 48, kFewestRead = 4096, kReadEach = 64;
  const int64_t lanes = vector_lanes(isa), read = std::min(row.extent, std::max(kFewestRead, kReadEach * count));
  const int64_t quarters = read / std::max(kFewestFirsts, count * 5 / 2) / kGroupFirstsVectors;
  TopKPool<int32_t>& pool = row.pool;
  const int64_t groups =
      quarters == 0 ? 0 : std::min(read / lanes / (quarters * kGroupFirstsVectors), pool.room() / lanes);
  if (groups * lanes < count) return false;
  auto* firsts = reinterpret_cast<float*>(pool.places_end());
  const GroupFirstsArgs args{reinterpret_cast<const float*>(row.elements), groups, quarters, firsts};
  group_firsts.entry()(&args);
  TopKRow<Float32Element>{reinterpret_cast<const uint32_t*>(firsts), groups * lanes, row.flip, pool}.fill_keys();
  pool.start_above();
  // Where nothing but NaN is in as many lanes, what is above may be too little.
  return pool.threshold() >= order_key(std::numeric_limits<float>::infinity(), SelectOrder::smallest_first) ||
         order == SelectOrder::largest_first;
}

// The same of float32, as far as there are whole groups; gives where it stopped. `list`: kListed.
int64_t FloatScan::scan(const TopKRow<Float32Element>& row, int64_t at, int32_t* list) const {
  const auto* floats = reinterpret_cast<const float*>(row.elements);
  const int64_t group = select_group(isa);
  TopKPool<int32_t>& pool = row.pool;
  for (int64_t left = (row.extent - at) / group; left > 0;) {
    const int64_t groups = std::min(left, kListed);
    const float threshold = threshold_of(pool.threshold(), order);
    const int64_t found = find_groups.entry()(floats + at, groups, &threshold, list);
    for (int64_t i = 0; i < found;) {
      const int64_t count = std::min(found - i, pool.room() / group);
      if (count == 0) {
        pool.shrink();
        continue;
      }
      const KeepArgs args{floats + at,     list + i,         count, pool.threshold(), static_cast<int32_t>(at),
                          pool.keys_end(), pool.places_end()};
      pool.grow(keep_row.entry()(&args));
      i += count;
    }
    at += groups * group;
    left -= groups;
  }
  return at;
}

}  // namespace lathe
