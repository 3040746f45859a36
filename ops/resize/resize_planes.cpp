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

// The element of each output position.
std::vector<int32_t> places_of(const ResizeMode& mode, const ResizeAxis& axis) {
  std::vector<int32_t> places;
  for (const ResizeTerms& terms : resize_terms(mode, axis)) places.push_back(static_cast<int32_t>(terms.front().index));
  return places;
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

// Planes of [rows][columns][lanes] elements; lanes is the channel block, or the channels behind the picture, or 1.
struct PlaneResize {
  int64_t planes = 1, in_rows = 1, in_columns = 1, lanes = 1;
  std::vector<int32_t> rows = {0}, columns;  // of the result: where in the input
  bool is_doubled = false;
  Kernel<RepeatPixelsFn> repeat_pixels;
  ElementPicks picks;  // of repeat_pixels

  int64_t out_columns() const { return static_cast<int64_t>(columns.size()); }

  void run_row(const float* plane, float* to, size_t y) const {
    const float* low = plane + rows[y] * in_columns * lanes;
    const auto count = columns.size();
    if (lanes == 1) {
      for (size_t x = 0; x < count; ++x) to[x] = low[columns[x]];
      return;
    }
    if (lanes * static_cast<int64_t>(sizeof(float)) <= kShortPixel) {
      for (size_t x = 0; x < count; ++x) {
        for (int64_t lane = 0; lane < lanes; ++lane) *to++ = low[columns[x] * lanes + lane];
      }
      return;
    }
    for (size_t x = 0; x < count; ++x) {
      std::copy_n(low + columns[x] * lanes, lanes, to + static_cast<int64_t>(x) * lanes);
    }
  }

  // Rows of the result from `y` on, before `end`, that repeat the same row.
  int64_t repeats(int64_t y, int64_t end) const {
    const auto first = static_cast<size_t>(y);
    int64_t count = 1;
    while (y + count < end && rows[static_cast<size_t>(y + count)] == rows[first]) ++count;
    return count;
  }

  void run(const float* from, float* to, int share, int shares) const {
    const auto out_rows = static_cast<int64_t>(rows.size());
    const Range range = split_evenly(planes * out_rows, share, shares);
    if (range.begin >= range.end) return;
    const int64_t plane_elements = in_rows * in_columns * lanes, out_row = out_columns() * lanes;
    const float* plane = from + range.begin / out_rows * plane_elements;
    int64_t y = range.begin % out_rows;
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t alike = repeats(y, std::min(out_rows, y + range.end - i));
      run_rows(plane, to + i * out_row, static_cast<size_t>(y), alike);
      i += alike;
      y += alike;
      if (y < out_rows) continue;
      y = 0;
      plane += plane_elements;
    }
  }

  // Rows from `y` on, `alike` of them.
  void run_rows(const float* plane, float* to, size_t y, int64_t alike) const {
    const float* row = plane + rows[y] * in_columns * lanes;
    const int64_t out_row = out_columns() * lanes, out_bytes = out_row * static_cast<int64_t>(sizeof(float));
    if (is_doubled && alike <= 2) {
      double_elements(row, in_columns, to, to + (alike - 1) * out_row);
    } else if (repeat_pixels) {
      const RepeatPixelsArgs call{row, to, picks.offsets.data(), picks.order.data(), out_row, out_bytes, alike};
      repeat_pixels.entry()(&call);
    } else {
      run_row(plane, to, y);
      for (int64_t k = 1; k < alike; ++k) std::copy_n(to, out_row, to + k * out_row);
    }
  }

  void choose_loops(Isa isa) {
    const int64_t pixel_bytes = lanes * static_cast<int64_t>(sizeof(float));
    is_doubled = lanes == 1 && out_columns() == 2 * in_columns;
    for (int64_t x = 0; x < out_columns() && is_doubled; ++x) {
      is_doubled = columns[static_cast<size_t>(x)] == x / 2;
    }
    if (lanes == 1) return choose_picks(isa);
    // By vectors, where a block of channels is one.
    if (lanes != vector_lanes(isa) || in_columns > INT32_MAX / pixel_bytes) return;
    for (const int32_t column : columns) picks.offsets.push_back(column * static_cast<int32_t>(pixel_bytes));
    repeat_pixels = repeat_pixels_kernel({isa});
  }

  // By the widest vectors that rows fill.
  void choose_picks(Isa isa) {
    for (const Isa candidate : {isa, Isa::avx2}) {
      if (std::optional<ElementPicks> found = element_picks(columns, in_columns, candidate)) {
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
  if (last - first == 2) {
    plane->in_rows = axes[first].in;
    plane->rows = places_of(mode, axes[first]);
  }
  plane->in_columns = axes[last - 1].in;
  plane->columns = places_of(mode, axes[last - 1]);
  return plane;
}

}  // namespace

bool add_nearest_planes(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes) {
  const TensorType &type = context.input_type(0), &out = context.output_type(0);
  if (type.dtype != DType::f32 || axes.empty() || type.layout != out.layout) return false;
  for (const ResizeAxis& axis : axes) {
    if (axis.in == 0 || axis.in > INT32_MAX) return axis.in == 0;
  }
  const auto plane = planes_of(type, mode, axes);
  if (!plane) return false;
  plane->choose_loops(context.target.isa);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step{.kernel = "resize nearest", .reads = {from}, .writes = {to}};
  step.bytes = static_cast<double>(type.storage_bytes() + out.storage_bytes());
  step.threads = step.bytes > 128e3 ? context.target.threads : 1;
  step.run = [plane, from, to](const StepArgs& args) {
    plane->run(args.at<const float>(from), args.at<float>(to), args.share, args.shares);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
