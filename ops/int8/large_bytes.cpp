#include "ops/int8/large_bytes.h"

#include <immintrin.h>

#include <cstring>

#include "jit/kernels/common/int8_dot.h"

namespace lathe {
namespace {

// Bits of the bytes whose pair's sum is more.
[[gnu::target("avx2")]] uint32_t pairs_beyond(__m256i bytes, int16_t most) noexcept {
  const __m256i sums = _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi16(sums, _mm256_set1_epi16(most))));
}

template <bool kIsSigned>
[[gnu::target("avx2")]] uint32_t large_pairs(__m256i bytes) noexcept {
  if constexpr (!kIsSigned) return pairs_beyond(bytes, kMostOfNeighbours);
  // -128 becomes 128 of an unsigned byte.
  const __m256i zero = _mm256_setzero_si256(), below = _mm256_abs_epi8(_mm256_min_epi8(bytes, zero));
  return pairs_beyond(_mm256_max_epi8(bytes, zero), kMostOfSignedNeighbours) |
         pairs_beyond(below, kMostOfSignedNeighbours);
}

template <bool kIsSigned>
[[gnu::target("avx2")]] void find_large(const uint8_t* row, int64_t bytes, int64_t part_bytes,
                                        uint8_t* large) noexcept {
  alignas(kLargeTogether) uint8_t rest[kLargeTogether] = {};
  for (int64_t at = 0; at < bytes; at += kLargeTogether) {
    const uint8_t* from = row + at;
    if (bytes - at < kLargeTogether) {
      std::memcpy(rest, from, static_cast<size_t>(bytes - at));
      from = rest;
    }
    uint32_t bits = large_pairs<kIsSigned>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    for (; bits != 0; bits &= bits - 1) large[(at + __builtin_ctz(bits)) / part_bytes] = 1;
  }
}

}  // namespace

[[gnu::target("avx2")]] uint32_t large_neighbours(const uint8_t* bytes) noexcept {
  return large_pairs<false>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
}

void find_large_parts(const uint8_t* row, bool is_signed, int64_t bytes, int64_t part_bytes, uint8_t* large) noexcept {
  is_signed ? find_large<true>(row, bytes, part_bytes, large) : find_large<false>(row, bytes, part_bytes, large);
}

}  // namespace lathe
