#include "ops/conv/conv_int8_crossed.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/gemm/gemm_plan.h"
#include "ops/int8/int8_crossed.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLanes = 8;          // channels in a block
constexpr int64_t kTogether = 256;     // pixels whose sums wait in L1 from block to block
constexpr int64_t kSums = kLanes / 2;  // 32-bit lanes of a pixel, every second of them used

struct Pixels {
  const uint8_t* in;
  int16_t* out;
  int32_t* sums;  // kSums of each pixel; added to
  int64_t count;
};

template <bool kIsSigned>
[[gnu::target("avx2")]] __m256i widened(__m128i bytes, __m256i zero) noexcept {
  return _mm256_sub_epi16(kIsSigned ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes), zero);
}
// What crossing adds to the sums of two pixels.
[[gnu::target("avx2")]] __m256i crossed_sums(__m256i values, __m256i kept) noexcept {
  return _mm256_and_si256(_mm256_madd_epi16(values, _mm256_srli_epi64(values, 32)), kept);
}

// One block; the first `channels` of it count.
template <bool kIsSigned>
[[gnu::target("avx2")]] void cross_block(const Pixels& pixels, int64_t channels, int32_t subtracted) noexcept {
  const __m256i zero = _mm256_set1_epi16(static_cast<int16_t>(subtracted));
  const int second = channels > kLanes / 2 ? -1 : 0;
  const __m256i kept = _mm256_setr_epi32(-1, 0, second, 0, -1, 0, second, 0);
  const uint8_t* in = pixels.in;
  auto* out = reinterpret_cast<__m256i*>(pixels.out);
  auto* sums = reinterpret_cast<__m256i*>(pixels.sums);
  for (int64_t left = pixels.count / 2; left > 0; --left, in += 2 * kLanes) {
    const __m256i values = widened<kIsSigned>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)), zero);
    _mm256_storeu_si256(out++, values);
    _mm256_storeu_si256(sums, _mm256_add_epi32(_mm256_loadu_si256(sums), crossed_sums(values, kept)));
    ++sums;
  }
  if (pixels.count % 2 == 0) return;
  const __m256i values = widened<kIsSigned>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)), zero);
  auto *last_out = reinterpret_cast<__m128i*>(out), *last = reinterpret_cast<__m128i*>(sums);
  _mm_storeu_si128(last_out, _mm256_castsi256_si128(values));
  _mm_storeu_si128(last, _mm_add_epi32(_mm_loadu_si128(last), _mm256_castsi256_si128(crossed_sums(values, kept))));
}

// The products of all outputs along an axis, without those beyond the border.
double inside(const ConvAxis& axis) {
  int64_t count = 0;
  for (const ConvTap& tap : axis.taps) {
    for (int64_t i = 0; i < axis.out; ++i) {
      const int64_t at = i * axis.stride + tap.offset;
      count += at >= 0 && at < axis.in;
    }
  }
  return static_cast<double>(count);
}

// Of one image: what its first tap's positions have, over all taps.
void sum_windows(const ConvShape& shape, const int32_t* terms, int32_t* out) noexcept {
  const ConvAxis &rows = shape.y, &columns = shape.x;
  for (int64_t y = 0; y < rows.out * rows.stride; y += rows.stride) {
    for (int64_t x = 0; x < columns.out * columns.stride; x += columns.stride) {
      uint32_t sum = 0;
      for (const ConvTap& down : rows.taps) {
        const int32_t* row = terms + (y + down.offset) * columns.in + x;
        for (const ConvTap& across : columns.taps) sum += static_cast<uint32_t>(row[across.offset]);
      }
      out[y * columns.in + x] = static_cast<int32_t>(sum);
    }
  }
}

BufferId add_window_sums(const LowerContext& context, const ConvProblem& problem, BufferId terms) {
  const ConvShape& shape = problem.phases[0];
  const int64_t images = problem.batch, positions = shape.y.in * shape.x.in;
  const BufferId to = context.scratch(checked_bytes(DType::i32, {images, positions}));
  Step step;
  step.kernel = "sum terms of windows";
  step.reads = {terms};
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(images * positions);
  step.run = [=](const StepArgs& args) {
    for (int64_t image = 0; image < images; ++image) {
      sum_windows(shape, args.at<const int32_t>(terms) + image * positions, args.at<int32_t>(to) + image * positions);
    }
  };
  context.add(std::move(step));
  return to;
}

// How the input is widened: in runs of pixels of one row, over all blocks.
struct CrossedInput {
  int64_t images, blocks, channels;
  bool is_signed;
  int64_t rows, columns;                   // of a block, with the border; a picture without one is a single row
  int64_t in_rows, in_columns, top, left;  // of the input, and where it begins
  int64_t step_y, step_x;                  // from pixel to pixel of those that are read; no border, but for 1

  int64_t positions() const { return rows * columns; }
  int64_t parts() const { return divide_up(columns, kTogether); }
  int64_t runs() const { return images * rows * parts(); }

  void run(int64_t number, const uint8_t* from, int32_t zero, int16_t* to, int32_t* terms) const noexcept {
    const int64_t first = number % parts() * kTogether, count = std::min(kTogether, columns - first);
    const int64_t row = number / parts() % rows, image = number / parts() / rows, in_row = row * step_y - top;
    const bool has_pixels = in_row >= 0 && in_row < in_rows;
    const int64_t begin = std::clamp(left, first, first + count);
    const int64_t end = has_pixels ? std::clamp(left + in_columns, begin, first + count) : begin;
    alignas(64) uint8_t taken[kTogether * kLanes];
    alignas(64) int32_t sums[kTogether * kSums];
    std::fill_n(sums, count * kSums, 0);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t plane = image * blocks + block;
      int16_t* out = to + (plane * positions() + row * columns + first) * kLanes;
      std::fill_n(out, (begin - first) * kLanes, int16_t{0});
      std::fill_n(out + (end - first) * kLanes, (first + count - end) * kLanes, int16_t{0});
      if (begin == end) continue;
      const uint8_t* in = from + ((plane * in_rows + in_row) * in_columns + (begin - left) * step_x) * kLanes;
      if (step_x > 1) {
        for (int64_t i = 0; i < count; ++i) std::memcpy(taken + i * kLanes, in + i * step_x * kLanes, kLanes);
        in = taken;
      }
      const Pixels pixels{in, out + (begin - first) * kLanes, sums + (begin - first) * kSums, end - begin};
      const int64_t counted = std::min(kLanes, channels - block * kLanes);
      is_signed ? cross_block<true>(pixels, counted, zero) : cross_block<false>(pixels, counted, zero);
    }
    terms += image * positions() + row * columns + first;
    for (int64_t i = 0; i < count; ++i) terms[i] = sums[i * kSums] + sums[i * kSums + 2];
  }
};

bool has_border(const ConvInt8Input& input) { return input.out_rows != input.rows || input.out_cols != input.cols; }

CrossedInput crossed_input(const ConvInt8Input& input, const CrossedSteps& steps) {
  const int64_t blocks = divide_up(input.channels, kLanes);
  CrossedInput made{input.planes / blocks,
                    blocks,
                    input.channels,
                    input.is_signed,
                    input.out_rows,
                    input.out_cols,
                    input.rows,
                    input.cols,
                    input.top,
                    input.left,
                    steps.y,
                    steps.x};
  made.rows = divide_up(made.rows, steps.y);
  made.columns = divide_up(made.columns, steps.x);
  if (has_border(input) || steps.y > 1 || steps.x > 1) return made;
  made.columns = made.in_columns = input.rows * input.cols;
  made.rows = made.in_rows = 1;
  return made;
}

}  // namespace

bool pays_crossed(const ConvInt8Problem& direct, const ConvInt8Problem& crossed) {
  constexpr double kMostBorder = 0.07;  // of the products
  if (!can_cross(crossed)) return false;
  const ConvProblem& shape = crossed.shape;
  const ConvShape &taps = direct.shape.phases[0], &all = shape.phases[0];
  const double products = static_cast<double>(all.y.out * all.x.out * all.taps());
  return inside(taps.y) * inside(taps.x) >= (1 - kMostBorder) * products &&
         pays_crossed(crossed.isa, shape.out_pixels(), shape.out_channels, crossed.in_channels * all.taps());
}

CrossedSteps take_pixels(const ConvInt8Input& input, ConvInt8Problem& problem) {
  ConvShape& shape = problem.shape.phases[0];
  const CrossedSteps steps{shape.y.stride, shape.x.stride};
  if (shape.taps() != 1 || has_border(input)) return {};
  shape.x.in = shape.x.out = shape.x.out_extent = shape.y.out * shape.x.out;
  shape.x.stride = 1;
  shape.y = ConvAxis();
  return steps;
}

std::pair<BufferId, BufferId> add_crossed_input(const LowerContext& context, const ConvInt8Input& input,
                                                const CrossedSteps& steps, const ConvProblem& shape, BufferId from,
                                                BufferId zero_at) {
  const CrossedInput rows = crossed_input(input, steps);
  const BufferId to = context.scratch(checked_bytes(DType::i16, {input.planes, rows.positions(), kLanes}));
  const BufferId terms = context.scratch(checked_bytes(DType::i32, {rows.images, rows.positions()}));
  Step step;
  step.kernel = "widen and cross channels";
  step.reads = {from};
  if (zero_at != BufferId::none) step.reads.push_back(zero_at);
  step.writes = {to, terms};
  step.bytes = 3.0 * static_cast<double>(input.planes * rows.positions() * kLanes);
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [=, known = input.zero](const StepArgs& args) {
    const int32_t zero = zero_at == BufferId::none ? known : input.zero_at(args.at<const void>(zero_at));
    const Range range = split_evenly(rows.runs(), args.share, args.shares);
    for (int64_t number = range.begin; number < range.end; ++number) {
      rows.run(number, args.at<const uint8_t>(from), zero, args.at<int16_t>(to), args.at<int32_t>(terms));
    }
  };
  context.add(std::move(step));
  return {to, shape.phases[0].taps() == 1 ? terms : add_window_sums(context, shape, terms)};
}

}  // namespace lathe
