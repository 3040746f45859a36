#include "ops/int8/quantize_floats.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

constexpr int64_t kLanes = 8, kTogether = 4;  // four of each: the latency of a minimum is four cycles

[[gnu::target("avx2")]] ValueRange range_over(const __m256* low, const __m256* high) noexcept {
  alignas(32) float lows[kLanes], highs[kLanes];
  _mm256_store_ps(lows, _mm256_min_ps(_mm256_min_ps(low[0], low[1]), _mm256_min_ps(low[2], low[3])));
  _mm256_store_ps(highs, _mm256_max_ps(_mm256_max_ps(high[0], high[1]), _mm256_max_ps(high[2], high[3])));
  return {*std::min_element(lows, lows + kLanes), *std::max_element(highs, highs + kLanes)};
}

// Quotients by the reciprocal, put right by what is left: as divisions would round them, where no step loses bits.
bool has_exact_reciprocal(float scale) noexcept { return scale >= 0x1p-60F && scale <= 0x1p60F; }

// Eight values at once: rounded quotients, the zero point added. Not yet within the range of bytes.
struct Quantizer {
  __m256 scale, reciprocal;
  __m256i zero;

  [[gnu::target("avx2,fma")]] explicit Quantizer(const Quantization& q) noexcept
      : scale(_mm256_set1_ps(q.scale)), reciprocal(_mm256_set1_ps(1 / q.scale)), zero(_mm256_set1_epi32(q.zero)) {}
  [[gnu::target("avx2,fma")]] __m256i operator()(const float* x) const noexcept {
    const __m256 value = _mm256_loadu_ps(x), near = _mm256_mul_ps(value, reciprocal);
    const __m256 quotient = _mm256_fmadd_ps(_mm256_fnmadd_ps(near, scale, value), reciprocal, near);
    return _mm256_add_epi32(_mm256_cvtps_epi32(quotient), zero);
  }
};

[[gnu::target("avx2")]] float byte_of(float x, const Quantization& q) noexcept {
  return std::clamp(std::nearbyint(x / q.scale) + static_cast<float>(q.zero), 0.0F, 255.0F);
}

}  // namespace

[[gnu::target("avx2")]] ValueRange range_of(const float* x, int64_t count) noexcept {
  __m256 low[kTogether] = {}, high[kTogether] = {};
  int64_t i = 0;
  for (; i + kTogether * kLanes <= count; i += kTogether * kLanes) {
    for (int64_t k = 0; k < kTogether; ++k) {
      const __m256 lanes = _mm256_loadu_ps(x + i + k * kLanes);
      low[k] = _mm256_min_ps(lanes, low[k]);
      high[k] = _mm256_max_ps(lanes, high[k]);
    }
  }
  ValueRange range = range_over(low, high);
  for (; i < count; ++i) {
    range.low = std::min(range.low, x[i]);
    range.high = std::max(range.high, x[i]);
  }
  return range;
}

[[gnu::target("avx2")]] ValueRange range_of_lanes(const float* x, int64_t rows, int64_t lanes, int64_t valid) noexcept {
  __m256 low[kTogether] = {}, high[kTogether] = {}, masks[kTogether] = {};
  const int64_t row_vecs = lanes / kLanes, vecs = rows * row_vecs;
  const __m256 numbers = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t k = 0; k < kTogether; ++k) {
    const auto left = static_cast<float>(valid - k % row_vecs * kLanes);
    masks[k] = _mm256_cmp_ps(numbers, _mm256_set1_ps(left), _CMP_LT_OQ);
  }
  for (int64_t i = 0; i < vecs; i += kTogether) {
    for (int64_t k = 0; k < kTogether && i + k < vecs; ++k) {
      const __m256 values = _mm256_and_ps(_mm256_loadu_ps(x + (i + k) * kLanes), masks[k]);
      low[k] = _mm256_min_ps(values, low[k]);
      high[k] = _mm256_max_ps(values, high[k]);
    }
  }
  return range_over(low, high);
}

Quantization quantization_of(const ValueRange& range) noexcept {
  const float scale = range.high == range.low ? 1.0F : (range.high - range.low) / 255.0F;
  return {scale, static_cast<int>(std::nearbyint(std::clamp(-range.low / scale, 0.0F, 255.0F)))};
}

[[gnu::target("avx2,fma")]] void quantize(const float* x, int64_t count, const Quantization& q, uint8_t* out) noexcept {
  const Quantizer quantized(q);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const int64_t whole = has_exact_reciprocal(q.scale) ? count : 0;
  int64_t i = 0;
  for (; i + kTogether * kLanes <= whole; i += kTogether * kLanes) {
    // Packing works within 128 bits.
    const __m256i low = _mm256_packs_epi32(quantized(x + i), quantized(x + i + kLanes));
    const __m256i high = _mm256_packs_epi32(quantized(x + i + 2 * kLanes), quantized(x + i + 3 * kLanes));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bytes);
  }
  for (; i + kLanes <= whole; i += kLanes) {
    const __m256i sums = quantized(x + i);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packus_epi16(words, words));
  }
  for (; i < count; ++i) out[i] = static_cast<uint8_t>(byte_of(x[i], q));
}

[[gnu::target("avx2,fma")]] void quantize_centered(const float* x, int64_t count, const Quantization& q,
                                                   int16_t* out) noexcept {
  const Quantizer quantized(q);
  const __m256i most = _mm256_set1_epi32(255);
  const int64_t whole = has_exact_reciprocal(q.scale) ? count : 0;
  int64_t i = 0;
  for (; i + kLanes <= whole; i += kLanes) {
    const __m256i bytes = _mm256_min_epi32(_mm256_max_epi32(quantized(x + i), _mm256_setzero_si256()), most);
    const __m256i centered = _mm256_sub_epi32(bytes, quantized.zero);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(centered), _mm256_extracti128_si256(centered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), words);
  }
  for (; i < count; ++i) out[i] = static_cast<int16_t>(static_cast<int>(byte_of(x[i], q)) - q.zero);
}

}  // namespace lathe
