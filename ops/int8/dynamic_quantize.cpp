#include "ops/int8/dynamic_quantize.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "ops/gemm/gemm_plan.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 16;  // floats of a cache line: threads write their ranges to lines of their own

struct ValueRange {
  float low = 0, high = 0;  // holds 0
};

[[gnu::target("avx2")]] ValueRange range_of(const float* x, int64_t count) noexcept {
  // Four of each: the latency of a minimum is four cycles.
  constexpr int64_t kLanes = 8, kTogether = 4;
  __m256 low[kTogether] = {}, high[kTogether] = {};
  int64_t i = 0;
  for (; i + kTogether * kLanes <= count; i += kTogether * kLanes) {
    for (int64_t k = 0; k < kTogether; ++k) {
      const __m256 lanes = _mm256_loadu_ps(x + i + k * kLanes);
      low[k] = _mm256_min_ps(lanes, low[k]);
      high[k] = _mm256_max_ps(lanes, high[k]);
    }
  }
  ValueRange range;
  alignas(32) float each[kLanes];
  for (int64_t k = 0; k < kTogether; ++k) {
    _mm256_store_ps(each, low[k]);
    range.low = std::min(range.low, *std::min_element(each, each + kLanes));
    _mm256_store_ps(each, high[k]);
    range.high = std::max(range.high, *std::max_element(each, each + kLanes));
  }
  for (; i < count; ++i) {
    range.low = std::min(range.low, x[i]);
    range.high = std::max(range.high, x[i]);
  }
  return range;
}

struct Quantization {
  float scale = 1;
  int zero = 0;
};

Quantization quantization_of(const ValueRange& range) noexcept {
  const float scale = range.high == range.low ? 1.0F : (range.high - range.low) / 255.0F;
  return {scale, static_cast<int>(std::nearbyint(std::clamp(-range.low / scale, 0.0F, 255.0F)))};
}

// Quotients by the reciprocal, put right by what is left: as divisions would round them, where no step loses bits.
bool has_exact_reciprocal(float scale) noexcept { return scale >= 0x1p-60F && scale <= 0x1p60F; }

[[gnu::target("avx2,fma")]] void quantize(const float* x, int64_t count, const Quantization& q, uint8_t* out) noexcept {
  constexpr int64_t kLanes = 8, kTogether = 4;
  const __m256 scale = _mm256_set1_ps(q.scale), reciprocal = _mm256_set1_ps(1 / q.scale);
  const __m256i zero = _mm256_set1_epi32(q.zero), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; has_exact_reciprocal(q.scale) && i + kTogether * kLanes <= count; i += kTogether * kLanes) {
    __m256i sums[kTogether];
    for (int64_t k = 0; k < kTogether; ++k) {
      const __m256 value = _mm256_loadu_ps(x + i + k * kLanes), near = _mm256_mul_ps(value, reciprocal);
      const __m256 quotient = _mm256_fmadd_ps(_mm256_fnmadd_ps(near, scale, value), reciprocal, near);
      sums[k] = _mm256_add_epi32(_mm256_cvtps_epi32(quotient), zero);
    }
    // Packing works within 128 bits.
    const __m256i low = _mm256_packs_epi32(sums[0], sums[1]), high = _mm256_packs_epi32(sums[2], sums[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bytes);
  }
  for (; i < count; ++i) {
    const float value = std::nearbyint(x[i] / q.scale) + static_cast<float>(q.zero);
    out[i] = static_cast<uint8_t>(std::clamp(value, 0.0F, 255.0F));
  }
}

}  // namespace

bool lower_dynamic_quantize(LowerContext& context) {
  if (context.input_type(0).dtype != DType::f32 || !context.has_output(0)) return false;
  const int64_t count = checked_elements(context.input_type(0).extents());
  const int threads = worthwhile_threads(static_cast<double>(count) * 10, context.target.threads);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const BufferId ranges = context.scratch(checked_bytes(DType::f32, {threads, kLine}));
  Step measure;
  measure.kernel = "range";
  measure.reads = {from};
  measure.writes = {ranges};
  measure.threads = threads;
  measure.bytes = 4.0 * static_cast<double>(count);
  measure.run = [=](const StepArgs& args) {
    const Range mine = split_evenly(count, args.share, threads);
    const ValueRange range = range_of(args.at<const float>(from) + mine.begin, mine.end - mine.begin);
    float* out = args.at<float>(ranges) + args.share * kLine;
    out[0] = range.low;
    out[1] = range.high;
  };
  context.add(std::move(measure));

  const BufferId scale = context.has_output(1) ? context.buffer(context.output(1)) : BufferId::none;
  const BufferId zero = context.has_output(2) ? context.buffer(context.output(2)) : BufferId::none;
  Step step;
  step.kernel = "quantize";
  step.reads = {from, ranges};
  step.writes = {to};
  for (const BufferId each : {scale, zero}) {
    if (each != BufferId::none) step.writes.push_back(each);
  }
  step.threads = threads;
  step.bytes = 5.0 * static_cast<double>(count);
  step.run = [=](const StepArgs& args) {
    ValueRange all;
    for (int i = 0; i < threads; ++i) {
      const float* part = args.at<const float>(ranges) + i * kLine;
      all.low = std::min(all.low, part[0]);
      all.high = std::max(all.high, part[1]);
    }
    const Quantization q = quantization_of(all);
    const Range mine = split_evenly(count, args.share, threads);
    quantize(args.at<const float>(from) + mine.begin, mine.end - mine.begin, q, args.at<uint8_t>(to) + mine.begin);
    if (args.share != 0) return;
    if (scale != BufferId::none) *args.at<float>(scale) = q.scale;
    if (zero != BufferId::none) *args.at<uint8_t>(zero) = static_cast<uint8_t>(q.zero);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
