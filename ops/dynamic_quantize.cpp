#include "ops/dynamic_quantize.h"

#include <emmintrin.h>

#include <algorithm>
#include <cmath>

#include "ops/gemm_plan.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 16;  // floats of a cache line: threads write their ranges to lines of their own

struct ValueRange {
  float low = 0, high = 0;  // holds 0
};

float lane_of(__m128 lanes, bool least) {
  alignas(16) float each[4];
  _mm_store_ps(each, lanes);
  return least ? *std::min_element(each, each + 4) : *std::max_element(each, each + 4);
}

ValueRange range_of(const float* x, int64_t count) noexcept {
  // Four of each: the latency of a minimum is four cycles.
  __m128 low[4] = {}, high[4] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int k = 0; k < 4; ++k) {
      const __m128 lanes = _mm_loadu_ps(x + i + 4 * k);
      low[k] = _mm_min_ps(lanes, low[k]);
      high[k] = _mm_max_ps(lanes, high[k]);
    }
  }
  ValueRange range{lane_of(_mm_min_ps(_mm_min_ps(low[0], low[1]), _mm_min_ps(low[2], low[3])), true),
                   lane_of(_mm_max_ps(_mm_max_ps(high[0], high[1]), _mm_max_ps(high[2], high[3])), false)};
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

void quantize(const float* x, int64_t count, const Quantization& q, uint8_t* out) noexcept {
  const __m128 scale = _mm_set1_ps(q.scale);
  const __m128i zero = _mm_set1_epi32(q.zero);
  const auto four = [&](const float* at) {
    return _mm_add_epi32(_mm_cvtps_epi32(_mm_div_ps(_mm_loadu_ps(at), scale)), zero);
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i low = _mm_packs_epi32(four(x + i), four(x + i + 4));
    const __m128i high = _mm_packs_epi32(four(x + i + 8), four(x + i + 12));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm_packus_epi16(low, high));
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
