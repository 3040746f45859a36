#include "src/base/half_rows.h"

#include <immintrin.h>

#include "src/base/half.h"

namespace lathe {

[[gnu::target("avx2,f16c")]] void halves_to_floats(const uint16_t* from, int64_t count, float* to) noexcept {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = half_to_float(from[i]);
}

[[gnu::target("avx2,f16c")]] void floats_to_halves(const float* from, int64_t count, uint16_t* to) noexcept {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  for (; i < count; ++i) to[i] = float_to_half(from[i]);
}

// The compiler makes vectors of these two, given the instructions.
[[gnu::target("avx2")]] void bfloats_to_floats(const uint16_t* from, int64_t count, float* to) noexcept {
  for (int64_t i = 0; i < count; ++i) to[i] = bfloat_to_float(from[i]);
}

[[gnu::target("avx2")]] void floats_to_bfloats(const float* from, int64_t count, uint16_t* to) noexcept {
  for (int64_t i = 0; i < count; ++i) to[i] = float_to_bfloat(from[i]);
}

}  // namespace lathe
