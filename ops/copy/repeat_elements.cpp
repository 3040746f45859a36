#include "ops/copy/repeat_elements.h"

#include <immintrin.h>

#include <cstring>

#include "src/base/check.h"

namespace lathe {
namespace {

template <size_t kBytes>
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i filled(const char* element) {
  if constexpr (kBytes == 1) return _mm256_set1_epi8(*element);
  if constexpr (kBytes == 16) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(element)));
  }
  if constexpr (kBytes == 2) {
    int16_t value = 0;
    std::memcpy(&value, element, kBytes);
    return _mm256_set1_epi16(value);
  }
  if constexpr (kBytes == 4) {
    int32_t value = 0;
    std::memcpy(&value, element, kBytes);
    return _mm256_set1_epi32(value);
  }
  int64_t value = 0;
  if constexpr (kBytes == 8) std::memcpy(&value, element, kBytes);
  return _mm256_set1_epi64x(value);
}

// A row ends with a vector that may overlap those before: its elements are all the same.
template <size_t kBytes>
[[gnu::target("avx2")]] void repeat(const char* from, char* to, const MoveAxis rows, int64_t row_bytes) {
  constexpr int64_t kVector = 32, kHalf = 16, kQuarter = 8;
  for (int64_t i = 0; i < rows.count; ++i) {
    const __m256i all = filled<kBytes>(from + i * rows.from_stride);
    char* out = to + i * rows.to_stride;
    if (row_bytes >= kVector) {
      for (int64_t at = 0; at + kVector <= row_bytes; at += kVector)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), all);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + row_bytes - kVector), all);
    } else if (row_bytes >= kHalf) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(all));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + row_bytes - kHalf), _mm256_castsi256_si128(all));
    } else if (row_bytes >= kQuarter) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(all));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + row_bytes - kQuarter), _mm256_castsi256_si128(all));
    } else {
      alignas(32) char pattern[kVector];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pattern), all);
      std::memcpy(out, pattern, static_cast<size_t>(row_bytes));
    }
  }
}

}  // namespace

void repeat_elements(const char* from, char* to, const MoveAxis& rows, int64_t count, size_t element_bytes) {
  const int64_t row_bytes = count * static_cast<int64_t>(element_bytes);
  switch (element_bytes) {
    case 1:
      return repeat<1>(from, to, rows, row_bytes);
    case 2:
      return repeat<2>(from, to, rows, row_bytes);
    case 4:
      return repeat<4>(from, to, rows, row_bytes);
    case 8:
      return repeat<8>(from, to, rows, row_bytes);
    case 16:
      return repeat<16>(from, to, rows, row_bytes);
    default:
      LATHE_CHECK(false, "an element of 1, 2, 4, 8 or 16 bytes");
  }
}

}  // namespace lathe
