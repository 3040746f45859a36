#include "ops/int8/int8_crossed.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace lathe {
namespace {

constexpr int64_t kLanes = 8;       // of 32 bits in a vector
constexpr int64_t kGroupBytes = 4;  // in A and, for each column, in B

// Every second lane has its own and the next one's dot product, the others nothing.
[[gnu::target("avx2")]] __m256i crossed_lanes(__m256i lanes) noexcept {
  return _mm256_madd_epi16(lanes, _mm256_srli_epi64(lanes, 32));
}

[[gnu::target("avx2")]] int32_t sum_of_lanes(__m256i lanes) noexcept {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_srli_epi64(sum, 32)));
}

[[gnu::target("avx2")]] int32_t crossed_row(const char* a, int64_t groups) noexcept {
  __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const auto load = [&](int64_t group) __attribute__((target("avx2"))) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + group * kGroupBytes));
  };
  int64_t group = 0;
  for (; group + 2 * kLanes <= groups; group += 2 * kLanes) {
    sums[0] = _mm256_add_epi32(sums[0], crossed_lanes(load(group)));
    sums[1] = _mm256_add_epi32(sums[1], crossed_lanes(load(group + kLanes)));
  }
  if (group + kLanes <= groups) {
    sums[0] = _mm256_add_epi32(sums[0], crossed_lanes(load(group)));
    group += kLanes;
  }
  if (group < groups) {
    alignas(32) char rest[kLanes * kGroupBytes] = {};
    std::memcpy(rest, a + group * kGroupBytes, static_cast<size_t>((groups - group) * kGroupBytes));
    sums[1] = _mm256_add_epi32(sums[1], crossed_lanes(_mm256_load_si256(reinterpret_cast<const __m256i*>(rest))));
  }
  return sum_of_lanes(_mm256_add_epi32(sums[0], sums[1]));
}

// Eight columns; `row_bytes` from group to group.
[[gnu::target("avx2")]] void crossed_columns(const char* b, int64_t groups, int64_t row_bytes, int32_t* out) noexcept {
  __m256i sums = _mm256_setzero_si256();
  for (int64_t group = 0; group < groups; group += 2, b += 2 * row_bytes) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + row_bytes));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(first, second));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sums);
}

}  // namespace

bool pays_crossed(Isa isa, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kFewestRows = 4, kFewestColumns = 16, kLeastDepth = 16;
  return can_cross(isa) && m >= kFewestRows && n >= kFewestColumns && k >= kLeastDepth;
}

void crossed_row_terms(const void* a, int64_t rows, int64_t groups, int64_t stride_bytes, int32_t* out) noexcept {
  const auto* at = static_cast<const char*>(a);
  for (int64_t row = 0; row < rows; ++row, at += stride_bytes) {
    out[row] = static_cast<int32_t>(0U - static_cast<uint32_t>(crossed_row(at, groups)));
  }
}

void crossed_column_sums(const void* packed, const Int8PanelFormat& format, int64_t rows, int64_t columns,
                         int32_t* out) noexcept {
  const int64_t groups = format.groups(rows), padded = format.padded(columns);
  const auto* panel = static_cast<const char*>(packed);
  for (int64_t first = 0; first < padded; first += format.panel_columns) {
    const int64_t width = std::min(format.panel_columns, padded - first), row_bytes = width * kGroupBytes;
    for (int64_t column = 0; column < width; column += kLanes) {
      crossed_columns(panel + column * kGroupBytes, groups, row_bytes, out + first + column);
    }
    panel += groups * row_bytes;
  }
}

}  // namespace lathe
