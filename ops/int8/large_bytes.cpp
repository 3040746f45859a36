#include "ops/int8/large_bytes.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/int8/int8_pack.h"

namespace lathe {
namespace {

[[gnu::target("avx2")]] __m256i load(const uint8_t* bytes) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}
[[gnu::target("avx2")]] __m256i sums_of_pairs(__m256i bytes) noexcept {
  return _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
}
[[gnu::target("avx2")]] __m256i sums_of_fours(__m256i pairs) noexcept {
  return _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, _MM_SHUFFLE(2, 3, 0, 1)));
}
// Bits of the bytes whose sum is more.
[[gnu::target("avx2")]] uint32_t bits_beyond(__m256i sums, int most) noexcept {
  return static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpgt_epi16(sums, _mm256_set1_epi16(static_cast<int16_t>(most)))));
}

[[gnu::target("avx2")]] uint32_t large_signed_pairs(const uint8_t* from) noexcept {
  const __m256i bytes = load(from);
  // -128 becomes 128 of an unsigned byte.
  const __m256i zero = _mm256_setzero_si256(), below = _mm256_abs_epi8(_mm256_min_epi8(bytes, zero));
  return bits_beyond(sums_of_pairs(_mm256_max_epi8(bytes, zero)), kMostOfSignedNeighbours) |
         bits_beyond(sums_of_pairs(below), kMostOfSignedNeighbours);
}

void note(uint32_t neighbours, uint32_t fours, LargeBytes& large) noexcept {
  if (fours != 0) large = std::max(large, LargeBytes::fours);
  if (neighbours != 0) large = LargeBytes::neighbours;
}

// Of the part at each of the bits.
void note_one_by_one(const LargeBits& bits, int64_t at, int64_t part_bytes, LargeBytes* large) noexcept {
  for (uint32_t left = bits.fours | bits.neighbours; left != 0; left &= left - 1) {
    const int i = __builtin_ctz(left);
    note(bits.neighbours >> i & 1, bits.fours >> i & 1, large[(at + i) / part_bytes]);
  }
}

// bits_of(bytes): LargeBits of kLargeTogether.
template <class BitsOf>
void find_large(const uint8_t* row, int64_t bytes, int64_t part_bytes, LargeBytes* large, BitsOf bits_of) noexcept {
  alignas(kLargeTogether) uint8_t rest[kLargeTogether] = {};
  const bool is_even = kLargeTogether % part_bytes == 0;
  const auto parts = static_cast<int>(is_even ? kLargeTogether / part_bytes : 0);
  const uint32_t mask = part_bytes < kLargeTogether ? (uint32_t{1} << part_bytes) - 1 : ~uint32_t{0};
  for (int64_t at = 0; at < bytes; at += kLargeTogether) {
    const uint8_t* from = row + at;
    const bool is_rest = bytes - at < kLargeTogether;
    if (is_rest) {
      std::memcpy(rest, from, static_cast<size_t>(bytes - at));
      from = rest;
    }
    const LargeBits bits = bits_of(from);
    if ((bits.neighbours | bits.fours) == 0) continue;
    if (!is_even || is_rest) {
      note_one_by_one(bits, at, part_bytes, large);
      continue;
    }
    LargeBytes* first = large + at / part_bytes;
    for (int part = 0; part < parts; ++part) {
      const auto shift = static_cast<int>(part * part_bytes);
      note(bits.neighbours >> shift & mask, bits.fours >> shift & mask, first[part]);
    }
  }
}

}  // namespace

[[gnu::target("avx2")]] LargeBits large_bits(const uint8_t* bytes, int most) noexcept {
  const __m256i pairs = sums_of_pairs(load(bytes));
  return {bits_beyond(pairs, most), bits_beyond(sums_of_fours(pairs), most)};
}

[[gnu::target("avx2")]] bool has_large(const uint8_t* bytes, bool by_fours, int most) noexcept {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    const __m256i pairs = sums_of_pairs(load(bytes + i * kLargeTogether));
    largest = _mm256_max_epi16(largest, by_fours ? sums_of_fours(pairs) : pairs);
  }
  return bits_beyond(largest, most) != 0;
}

[[gnu::target("avx2")]] uint8_t least_byte(const uint8_t* bytes, int64_t count, uint8_t flip) noexcept {
  const __m256i flips = _mm256_set1_epi8(static_cast<char>(flip));
  __m256i least[4];
  std::fill(std::begin(least), std::end(least), _mm256_set1_epi8(-1));
  constexpr int64_t kTogether = 4 * kLargeTogether;
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether)
    for (int64_t part = 0; part < 4; ++part)
      least[part] = _mm256_min_epu8(least[part], _mm256_xor_si256(load(bytes + i + part * kLargeTogether), flips));
  alignas(kLargeTogether) uint8_t lanes[kLargeTogether];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                     _mm256_min_epu8(_mm256_min_epu8(least[0], least[1]), _mm256_min_epu8(least[2], least[3])));
  uint8_t result = *std::min_element(std::begin(lanes), std::end(lanes));
  for (; i < count; ++i) result = std::min(result, static_cast<uint8_t>(bytes[i] ^ flip));
  return result;
}

int most_together(std::span<const int8_t> weights) noexcept {
  return are_at_most(weights, kMostOfSevenBits) ? kMostBesideSevenBits : kMostOfNeighbours;
}

void find_large_parts(const uint8_t* row, int64_t bytes, int64_t part_bytes, int most, LargeBytes* large) noexcept {
  find_large(row, bytes, part_bytes, large, [most](const uint8_t* from) { return large_bits(from, most); });
}

void find_large_parts(const int8_t* row, int64_t bytes, int64_t part_bytes, LargeBytes* large) noexcept {
  find_large(reinterpret_cast<const uint8_t*>(row), bytes, part_bytes, large, [](const uint8_t* from) {
    return LargeBits{large_signed_pairs(from), 0};
  });
}

void prefer_one_way(std::span<LargeBytes> large) noexcept {
  const auto small = static_cast<size_t>(std::count(large.begin(), large.end(), LargeBytes::none));
  if (!are_mixed(large.size() - small, large.size())) return;
  for (LargeBytes& what : large) what = std::max(what, LargeBytes::fours);
}

}  // namespace lathe
