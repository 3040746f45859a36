#include "ops/rows/topk_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kFewest = 128;       // elements of a pool: two groups of a scan
constexpr int64_t kMostCounted = 160;  // where counting, whose work is a square, takes as long as sorting by digits
constexpr int64_t kWideDigits = 4096;  // from as many elements on digits of 11 bits pay

template <class Key>
struct Vectors {
  using Keys [[gnu::vector_size(32)]] = Key;
  static constexpr int64_t kLanes = 32 / sizeof(Key);
};

// Of whole vectors.
template <class Key>
[[gnu::target("avx2")]] int64_t count_greater(const Key* keys, int64_t count, Key than) {
  using Keys = typename Vectors<Key>::Keys;
  constexpr int64_t kLanes = Vectors<Key>::kLanes, kAtOnce = 4;
  Keys sums[kAtOnce] = {};
  for (int64_t i = 0; i < count; i += kAtOnce * kLanes) {
    for (int64_t v = 0; v < kAtOnce; ++v) {
      Keys x;
      std::memcpy(&x, keys + i + v * kLanes, sizeof x);
      sums[v] += x > than;  // -1 where it is
    }
  }
  const Keys sum = sums[0] + sums[1] + sums[2] + sums[3];
  if constexpr (sizeof(Key) == 8) {
    return -(sum[0] + sum[1] + sum[2] + sum[3]);
  } else {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(reinterpret_cast<__m256i>(sum)),
                                 _mm256_extracti128_si256(reinterpret_cast<__m256i>(sum), 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return -int64_t{_mm_cvtsi128_si32(half)} - _mm_extract_epi32(half, 1);
  }
}

// For each key how many are greater. Whole vectors are read and written.
template <class Key>
[[gnu::target("avx2")]] void count_greater_of_each(const Key* keys, int64_t count, Key* greater) {
  using Keys = typename Vectors<Key>::Keys;
  constexpr int64_t kLanes = Vectors<Key>::kLanes, kAtOnce = 4;
  for (int64_t i = 0; i < count; i += kAtOnce * kLanes) {
    Keys each[kAtOnce], sums[kAtOnce] = {};
    std::memcpy(each, keys + i, sizeof each);
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t v = 0; v < kAtOnce; ++v) sums[v] -= keys[j] > each[v];
    }
    std::memcpy(greater + i, sums, sizeof sums);
  }
}

template <class Key>
[[gnu::target("avx2")]] std::pair<Key, Key> bounds_of(const Key* keys, int64_t count) {
  Key low = keys[0], high = keys[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, keys[i]);
    high = std::max(high, keys[i]);
  }
  return {low, high};
}

}  // namespace

int64_t topk_pool_capacity(int64_t count, int64_t extent) {
  return count > extent / 8 ? extent : std::min(extent, std::max(kFewest, 4 * count));
}

template <class Key>
int64_t TopKPool<Key>::most_sorted(int64_t count, int64_t capacity) {
  return std::min(capacity, count + std::max<int64_t>(4, count / 4));
}

template <class Key>
size_t TopKPool<Key>::bytes(int64_t count, int64_t capacity) {
  const auto sorted = static_cast<size_t>(most_sorted(count, capacity)), room = static_cast<size_t>(capacity + kSlack);
  return 2 * sorted * sizeof(Item) + room * sizeof(Key) + (room + sorted) * sizeof(int32_t);
}

template <class Key>
TopKPool<Key>::TopKPool(void* memory, int64_t count, int64_t capacity, KeepFn* keep, int64_t lanes)
    : count_(count), capacity_(capacity), keep_(keep), lanes_(lanes) {
  items_ = static_cast<Item*>(memory);
  keys_ = reinterpret_cast<Key*>(items_ + 2 * most_kept());
  places_ = reinterpret_cast<int32_t*>(keys_ + capacity + kSlack);
  result_ = places_ + capacity + kSlack;
}

template <class Key>
int64_t TopKPool<Key>::most_kept() const {
  return most_sorted(count_, capacity_);
}

template <class Key>
int64_t TopKPool<Key>::count_above(Key threshold) const {
  return count_greater(keys_, size_, threshold);
}

// Between the lowest and the highest key by halves, until few enough are above: an exact threshold would take many
// more turns. Where keys are equal there may be none: then fewer than `count` are above, and all others that matter are
// equal to it. Without a branch that depends on a single element.
template <class Key>
typename TopKPool<Key>::Split TopKPool<Key>::split() const {
  using Distance = std::make_unsigned_t<Key>;
  const auto [lowest, highest] = bounds_of(keys_, size_);
  Split low{lowest, count_above(lowest)}, high{highest, 0};
  if (low.above < count_) return low;
  while (low.above > most_kept()) {
    const Distance distance = static_cast<Distance>(high.threshold) - static_cast<Distance>(low.threshold);
    if (distance == 1) return high;
    const Key threshold = static_cast<Key>(static_cast<Distance>(low.threshold) + distance / 2);
    const Split middle{threshold, count_above(threshold)};
    (middle.above >= count_ ? low : high) = middle;
  }
  return low;
}

template <class Key>
void TopKPool<Key>::pad() {
  std::fill_n(keys_ + size_, kSlack, std::numeric_limits<Key>::min());
}

template <class Key>
void TopKPool<Key>::start_above() {
  pad();
  const Split found = split();
  threshold_ = found.above >= count_ ? found.threshold : static_cast<Key>(found.threshold - 1);
  size_ = 0;
}

template <class Key>
void TopKPool<Key>::shrink() {
  pad();
  const Split found = split();
  found.above >= count_ ? keep_above(found.threshold) : keep_equal(found.threshold, found.above);
}

template <class Key>
void TopKPool<Key>::keep_above(Key threshold) {
  threshold_ = threshold;
  if constexpr (std::is_same_v<Key, int32_t>) {
    if (keep_ != nullptr) {
      const KeepArgs args{keys_, places_, divide_up(size_, lanes_), threshold, 0, keys_, places_};
      size_ = keep_(&args);
      return;
    }
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < size_; ++i) {
    const Key key = keys_[i];
    keys_[kept] = key;
    places_[kept] = places_[i];
    kept += key > threshold ? 1 : 0;
  }
  size_ = kept;
}

// `above` are above it, and of those that are equal to it the first ones fill the rest.
template <class Key>
void TopKPool<Key>::keep_equal(Key key, int64_t above) {
  threshold_ = key;
  int64_t kept = 0, equal = count_ - above;
  for (int64_t i = 0; i < size_; ++i) {
    const Key x = keys_[i];
    const bool is_chosen = x > key || (x == key && equal > 0);
    equal -= x == key ? 1 : 0;
    keys_[kept] = x;
    places_[kept] = places_[i];
    kept += is_chosen ? 1 : 0;
  }
  size_ = kept;
}

template <class Key>
std::span<const int32_t> TopKPool<Key>::sorted() {
  if (size_ > most_kept()) shrink();
  size_ <= kMostCounted ? sort_by_counting() : sort_by_digits();
  size_ = 0;
  return {result_, static_cast<size_t>(count_)};
}

// An element comes behind all that are above it; of equal ones the first takes the first place that is free.
template <class Key>
void TopKPool<Key>::sort_by_counting() {
  Key ranks[kMostCounted + kSlack];
  std::fill_n(result_, size_, -1);
  count_greater_of_each(keys_, size_, ranks);
  for (int64_t i = 0; i < size_; ++i) {
    auto rank = static_cast<int64_t>(ranks[i]);
    while (result_[rank] >= 0) ++rank;
    result_[rank] = places_[i];
  }
}

// From the lowest digit to the highest that differs, each time keeping the order of what is equal.
template <class Key>
void TopKPool<Key>::sort_by_digits() {
  using Distance = std::make_unsigned_t<Key>;
  const int digit_bits = size_ >= kWideDigits ? 11 : 8;
  const auto [lowest, highest] = bounds_of(keys_, size_);
  Item *from = items_, *to = items_ + most_kept();
  for (int64_t i = 0; i < size_; ++i) {
    from[i] = {static_cast<Distance>(static_cast<Distance>(highest) - static_cast<Distance>(keys_[i])), places_[i]};
  }
  const int bits =
      std::bit_width(static_cast<Distance>(static_cast<Distance>(highest) - static_cast<Distance>(lowest)));
  for (int shift = 0; shift < bits; shift += digit_bits) {
    uint32_t ends[1 << 11];
    const Distance digits = (Distance{1} << digit_bits) - 1;
    std::fill_n(ends, digits + 1, 0U);
    for (int64_t i = 0; i < size_; ++i) ++ends[(from[i].key >> shift) & digits];
    uint32_t sum = 0;
    for (Distance digit = 0; digit <= digits; ++digit) {
      const uint32_t count = ends[digit];
      ends[digit] = sum;
      sum += count;
    }
    for (int64_t i = 0; i < size_; ++i) to[ends[(from[i].key >> shift) & digits]++] = from[i];
    std::swap(from, to);
  }
  for (int64_t i = 0; i < count_; ++i) result_[i] = from[i].place;
}

template class TopKPool<int32_t>;
template class TopKPool<int64_t>;

}  // namespace lathe
