#include "ops/resize/resize_planes.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "jit/kernels/copy/repeat_pixels.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Pixels of 4 and 8 bytes are moved one by one: calls to copy them would take longer.
constexpr int64_t kShortPixel = 8;

struct Taps {
  std::vector<int32_t> low, high;  // the two elements of each output position (equal for nearest)
  std::vector<float> weight;       // of `high`
};

std::optional<Taps> taps_of(const ResizeMode& mode, const ResizeAxis& axis) {
  Taps taps;
  for (const ResizeTerms& terms : resize_terms(mode, axis)) {
    if (terms.empty() || terms.size() > 2) return std::nullopt;
    taps.low.push_back(static_cast<int32_t>(terms.front().index));
    taps.high.push_back(static_cast<int32_t>(terms.back().index));
    taps.weight.push_back(terms.size() == 2 ? static_cast<float>(terms.back().weight) : 0.0f);
  }
  return taps;
}

// Each element twice, 8 to 16, in two rows that may be the same.
[[gnu::target("avx2"), gnu::always_inline]] inline void double_eight(const float* from, float* to, float* again) {
  const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
  const __m256 x = _mm256_loadu_ps(from);
  const __m256 left = _mm256_permutevar8x32_ps(x, low), right = _mm256_permutevar8x32_ps(x, high);
  _mm256_storeu_ps(to, left);
  _mm256_storeu_ps(to + 8, right);
  _mm256_storeu_ps(again, left);
  _mm256_storeu_ps(again + 8, right);
}

[[gnu::target("avx2")]] void double_elements(const float* from, int64_t count, float* to, float* again) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) double_eight(from + i, to + 2 * i, again + 2 * i);
  // The last ones together with some of those before.
  if (i < count && count >= 8) return double_eight(from + count - 8, to + 2 * (count - 8), again + 2 * (count - 8));
  for (; i < count; ++i) to[2 * i] = to[2 * i + 1] = again[2 * i] = again[2 * i + 1] = from[i];
}

[[gnu::target("avx2,fma")]] void mix_rows(const float* low, const float* high, float weight, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = low[i] + weight * (high[i] - low[i]);
}

// Pixels of a vector or two of AVX2.
template <int kLanes>
[[gnu::target("avx2,fma")]] void mix_blocks(const float* row, const Taps& columns, float* to) {
  const size_t count = columns.low.size();
  for (size_t x = 0; x < count; ++x, to += kLanes) {
    const float *left = row + int64_t{columns.low[x]} * kLanes, *right = row + int64_t{columns.high[x]} * kLanes;
    const __m256 weight = _mm256_set1_ps(columns.weight[x]);
    for (int lane = 0; lane < kLanes; lane += 8) {
      const __m256 a = _mm256_loadu_ps(left + lane), b = _mm256_loadu_ps(right + lane);
      _mm256_storeu_ps(to + lane, _mm256_fmadd_ps(weight, _mm256_sub_ps(b, a), a));
    }
  }
}

// Pixels of `lanes` elements between two of the row.
[[gnu::target("avx2,fma")]] void mix_pixels(const float* row, const Taps& columns, int64_t lanes, float* to) {
  if (lanes == 8) return mix_blocks<8>(row, columns, to);
  if (lanes == 16) return mix_blocks<16>(row, columns, to);
  const auto count = static_cast<int64_t>(columns.low.size());
  for (int64_t x = 0; x < count; ++x) {
    const auto at = static_cast<size_t>(x);
    const float *left = row + columns.low[at] * lanes, *right = row + columns.high[at] * lanes;
    const float weight = columns.weight[at];
    for (int64_t lane = 0; lane < lanes; ++lane) to[lane] = left[lane] + weight * (right[lane] - left[lane]);
    to += lanes;
  }
}

// Eight neighbouring elements of the result that are made of eight of the row, as where it is enlarged: one load and
// two permutations take the place of sixteen loads.
struct NearColumns {
  std::vector<int32_t> base;       // of each eight
  std::vector<int32_t> low, high;  // from there
};

// Empty: somewhere eight elements are made of more.
NearColumns near_columns(const Taps& columns, int64_t in) {
  NearColumns near;
  for (size_t x = 0; x + 8 <= columns.low.size(); x += 8) {
    int32_t first = INT32_MAX, last = 0;
    for (size_t k = x; k < x + 8; ++k) {
      first = std::min({first, columns.low[k], columns.high[k]});
      last = std::max({last, columns.low[k], columns.high[k]});
    }
    first = std::min(first, static_cast<int32_t>(in) - 8);
    if (first < 0 || last - first > 7) return {};
    near.base.push_back(first);
    for (size_t k = x; k < x + 8; ++k) {
      near.low.push_back(columns.low[k] - first);
      near.high.push_back(columns.high[k] - first);
    }
  }
  return near;
}

// Elements of the result between two of the row.
[[gnu::target("avx2,fma")]] void mix_elements(const float* row, const Taps& columns, const NearColumns& near,
                                              float* to) {
  const auto count = static_cast<int64_t>(columns.low.size());
  const float* weight = columns.weight.data();
  int64_t x = 0;
  for (size_t group = 0; group < near.base.size(); ++group, x += 8) {
    const __m256 all = _mm256_loadu_ps(row + near.base[group]);
    const __m256i at_low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(near.low.data() + x));
    const __m256i at_high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(near.high.data() + x));
    const __m256 a = _mm256_permutevar8x32_ps(all, at_low), b = _mm256_permutevar8x32_ps(all, at_high);
    _mm256_storeu_ps(to + x, _mm256_fmadd_ps(_mm256_loadu_ps(weight + x), _mm256_sub_ps(b, a), a));
  }
  const int32_t *low = columns.low.data(), *high = columns.high.data();
  for (; x < count; ++x) to[x] = row[low[x]] + weight[x] * (row[high[x]] - row[low[x]]);
}

// Planes of [rows][columns][lanes] elements; lanes is the channel block, or the channels behind the picture, or 1.
struct PlaneResize {
  int64_t planes = 1, in_rows = 1, in_columns = 1, lanes = 1;
  Taps rows, columns;
  NearColumns near;
  bool is_nearest = true, is_doubled = false;
  Kernel<RepeatPixelsFn> repeat_pixels;
  ElementPicks picks;  // of repeat_pixels

  int64_t out_columns() const { return static_cast<int64_t>(columns.low.size()); }
  size_t row_bytes() const { return static_cast<size_t>(in_columns * lanes) * sizeof(float); }

  // `mixed`: room for a row of the input.
  void run_row(const float* plane, float* to, size_t y, float* mixed) const {
    const float* low = plane + rows.low[y] * in_columns * lanes;
    if (!is_nearest) {
      const float* high = plane + rows.high[y] * in_columns * lanes;
      const bool is_one = rows.weight[y] == 0;
      if (!is_one) mix_rows(low, high, rows.weight[y], in_columns * lanes, mixed);
      const float* row = is_one ? low : mixed;
      return lanes == 1 ? mix_elements(row, columns, near, to) : mix_pixels(row, columns, lanes, to);
    }
    const auto count = columns.low.size();
    if (lanes == 1) {
      for (size_t x = 0; x < count; ++x) to[x] = low[columns.low[x]];
      return;
    }
    if (lanes * static_cast<int64_t>(sizeof(float)) <= kShortPixel) {
      for (size_t x = 0; x < count; ++x) {
        for (int64_t lane = 0; lane < lanes; ++lane) *to++ = low[columns.low[x] * lanes + lane];
      }
      return;
    }
    for (size_t x = 0; x < count; ++x) {
      std::copy_n(low + columns.low[x] * lanes, lanes, to + static_cast<int64_t>(x) * lanes);
    }
  }

  // Rows of the result from `y` on, before `end`, that repeat the same row.
  int64_t repeats(int64_t y, int64_t end) const {
    const auto first = static_cast<size_t>(y);
    int64_t count = 1;
    for (; y + count < end; ++count) {
      const auto next = static_cast<size_t>(y + count);
      const bool mixes_same = rows.high[next] == rows.high[first] && rows.weight[next] == rows.weight[first];
      if (rows.low[next] != rows.low[first] || (!is_nearest && !mixes_same)) break;
    }
    return count;
  }

  void run(const float* from, float* to, float* mixed, int share, int shares) const {
    const auto out_rows = static_cast<int64_t>(rows.low.size());
    const Range range = split_evenly(planes * out_rows, share, shares);
    if (range.begin >= range.end) return;
    const int64_t plane_elements = in_rows * in_columns * lanes, out_row = out_columns() * lanes;
    const float* plane = from + range.begin / out_rows * plane_elements;
    int64_t y = range.begin % out_rows;
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t alike = repeats(y, std::min(out_rows, y + range.end - i));
      run_rows(plane, to + i * out_row, static_cast<size_t>(y), alike, mixed);
      i += alike;
      y += alike;
      if (y < out_rows) continue;
      y = 0;
      plane += plane_elements;
    }
  }

  // Rows from `y` on, `alike` of them.
  void run_rows(const float* plane, float* to, size_t y, int64_t alike, float* mixed) const {
    const float* row = plane + rows.low[y] * in_columns * lanes;
    const int64_t out_row = out_columns() * lanes, out_bytes = out_row * static_cast<int64_t>(sizeof(float));
    if (is_doubled && alike <= 2) {
      double_elements(row, in_columns, to, to + (alike - 1) * out_row);
    } else if (repeat_pixels) {
      const RepeatPixelsArgs call{row, to, picks.offsets.data(), picks.order.data(), out_row, out_bytes, alike};
      repeat_pixels.entry()(&call);
    } else {
      run_row(plane, to, y, mixed);
      for (int64_t k = 1; k < alike; ++k) std::copy_n(to, out_row, to + k * out_row);
    }
  }

  void choose_loops(Isa isa) {
    const int64_t pixel_bytes = lanes * static_cast<int64_t>(sizeof(float));
    if (!is_nearest) return;
    is_doubled = lanes == 1 && out_columns() == 2 * in_columns;
    for (int64_t x = 0; x < out_columns() && is_doubled; ++x) {
      is_doubled = columns.low[static_cast<size_t>(x)] == x / 2;
    }
    if (lanes == 1) return choose_picks(isa);
    // By vectors, where a block of channels is one.
    if (lanes != vector_lanes(isa) || in_columns > INT32_MAX / pixel_bytes) return;
    for (const int32_t column : columns.low) picks.offsets.push_back(column * static_cast<int32_t>(pixel_bytes));
    repeat_pixels = repeat_pixels_kernel({isa});
  }

  // By the widest vectors that rows fill.
  void choose_picks(Isa isa) {
    for (const Isa candidate : {isa, Isa::avx2}) {
      if (std::optional<ElementPicks> found = element_picks(columns.low, in_columns, candidate)) {
        picks = std::move(*found);
        repeat_pixels = repeat_pixels_kernel({candidate, true});
        return;
      }
    }
  }
};

// The input as planes of rows and columns: the resized axes and all between are one or two.
std::shared_ptr<PlaneResize> planes_of(const TensorType& type, const ResizeMode& mode,
                                       const std::vector<ResizeAxis>& axes) {
  const int block = type.layout.channel_block;
  size_t first = 0, last = axes.size();
  while (first < axes.size() && is_kept(axes[first])) ++first;
  while (last > first && is_kept(axes[last - 1])) --last;
  if (first == last) first = last = axes.size() - 1, ++last;
  if (last - first > 2 || (block != 0 && first < 2)) return nullptr;
  auto plane = std::make_shared<PlaneResize>();
  plane->lanes = std::max(block, 1);
  for (size_t i = 0; i < first; ++i) {
    plane->planes *= block != 0 && i == 1 ? (axes[i].in + block - 1) / block : axes[i].in;
  }
  for (size_t i = last; i < axes.size(); ++i) plane->lanes *= axes[i].in;
  const std::optional<Taps> columns = taps_of(mode, axes[last - 1]);
  const std::optional<Taps> rows = last - first == 2 ? taps_of(mode, axes[first]) : Taps{{0}, {0}, {0}};
  if (!rows || !columns) return nullptr;
  if (last - first == 2) plane->in_rows = axes[first].in;
  plane->in_columns = axes[last - 1].in;
  plane->rows = *rows;
  plane->columns = *columns;
  plane->is_nearest = mode.mode == "nearest";
  if (!plane->is_nearest && plane->lanes == 1) plane->near = near_columns(plane->columns, plane->in_columns);
  return plane;
}

}  // namespace

bool add_resize_step(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes) {
  const TensorType &type = context.input_type(0), &out = context.output_type(0);
  if (type.dtype != DType::f32 || axes.empty() || type.layout != out.layout) return false;
  for (const ResizeAxis& axis : axes) {
    if (axis.in == 0 || axis.in > INT32_MAX) return axis.in == 0;
  }
  const auto plane = planes_of(type, mode, axes);
  if (!plane) return false;
  plane->choose_loops(context.target.isa);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const BufferId mixed = context.thread_scratch(plane->row_bytes());
  Step step{.kernel = "resize " + mode.mode, .reads = {from, mixed}, .writes = {to, mixed}};
  step.bytes = static_cast<double>(type.storage_bytes() + out.storage_bytes());
  step.threads = step.bytes > 128e3 ? context.target.threads : 1;
  step.run = [plane, from, to, mixed](const StepArgs& args) {
    plane->run(args.at<const float>(from), args.at<float>(to), args.own<float>(mixed), args.share, args.shares);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
