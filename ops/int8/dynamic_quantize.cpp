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

constexpr int64_t kLanes = 8, kTogether = 4;  // four of each: the latency of a minimum is four cycles

[[gnu::target("avx2")]] ValueRange range_over(const __m256* low, const __m256* high) noexcept {
  ValueRange range;
  alignas(32) float each[kLanes];
  for (int64_t k = 0; k < kTogether; ++k) {
    _mm256_store_ps(each, low[k]);
    range.low = std::min(range.low, *std::min_element(each, each + kLanes));
    _mm256_store_ps(each, high[k]);
    range.high = std::max(range.high, *std::max_element(each, each + kLanes));
  }
  return range;
}

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

// How the values lie: rows of `lanes`, all of them values but in every `period`-th run of `rows` rows, in which only
// the first `valid` of each row are. Plain values: one run.
struct ValueRows {
  int64_t lanes = 1, rows = 0, period = 1, valid = 1;
  int64_t runs = 1;

  int64_t count() const { return runs * rows * lanes; }
  bool is_partial(int64_t run) const { return valid < lanes && run % period == period - 1; }
};

ValueRows rows_of(const TensorType& type) {
  const int64_t lanes = type.layout.channel_block;
  if (lanes == 0) return {.rows = checked_elements(type.extents())};
  const Dims dims = type.storage_dims();
  const int64_t pixels = checked_elements(Dims(dims.begin() + 2, dims.end() - 1));
  const int64_t left = type.dims[1].extent % lanes;
  return {
      .lanes = lanes, .rows = pixels, .period = dims[1], .valid = left == 0 ? lanes : left, .runs = dims[0] * dims[1]};
}

// The same of rows in which only some lanes are values: others count as 0, which a range holds in any case.
[[gnu::target("avx2")]] ValueRange range_of_part(const float* x, int64_t rows, const ValueRows& of) noexcept {
  __m256 low[kTogether] = {}, high[kTogether] = {}, masks[kTogether] = {};
  const int64_t row_vecs = of.lanes / kLanes, vecs = rows * row_vecs;
  const __m256 numbers = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t k = 0; k < kTogether; ++k) {
    const auto left = static_cast<float>(of.valid - k % row_vecs * kLanes);
    masks[k] = _mm256_cmp_ps(numbers, _mm256_set1_ps(left), _CMP_LT_OQ);
  }
  for (int64_t i = 0; i < vecs; i += kTogether) {
    for (int64_t k = 0; k < kTogether && i + k < vecs; ++k) {
      const __m256 lanes = _mm256_and_ps(_mm256_loadu_ps(x + (i + k) * kLanes), masks[k]);
      low[k] = _mm256_min_ps(lanes, low[k]);
      high[k] = _mm256_max_ps(lanes, high[k]);
    }
  }
  return range_over(low, high);
}

ValueRange range_of_rows(const float* x, const Range& mine, const ValueRows& of) noexcept {
  ValueRange range;
  for (int64_t row = mine.begin; row < mine.end;) {
    // Runs of whole rows lie behind each other.
    int64_t run = row / of.rows, end = row;
    const bool is_partial = of.is_partial(run);
    for (; end < mine.end && of.is_partial(run) == is_partial; ++run)
      end = std::min<int64_t>(mine.end, (run + 1) * of.rows);
    const float* at = x + row * of.lanes;
    const ValueRange part = is_partial ? range_of_part(at, end - row, of) : range_of(at, (end - row) * of.lanes);
    range.low = std::min(range.low, part.low);
    range.high = std::max(range.high, part.high);
    row = end;
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
  if (context.input_type(0).layout != context.output_type(0).layout) return false;
  const ValueRows rows = rows_of(context.input_type(0));
  const int64_t count = rows.count();
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
    const ValueRange range =
        range_of_rows(args.at<const float>(from), split_evenly(rows.runs * rows.rows, args.share, threads), rows);
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
