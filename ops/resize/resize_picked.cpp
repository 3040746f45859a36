#include "ops/resize/resize_picked.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/copy/copy_bytes.h"
#include "ops/copy/index_check.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

struct PickedRows {
  static constexpr int64_t kGroup = 16;

  Dims extents;                               // of the result, but for the last axis
  std::vector<std::vector<int64_t>> offsets;  // of each of these axes: bytes into the input, by index
  std::vector<int64_t> columns;               // of the last axis, in pixels
  int64_t pixel_bytes = 1;
  bool keeps_columns = false;
  // Of each 16 bytes of a row of the result that are made of 16 of the input's, as where it is enlarged: where these
  // begin (-1: they are not), and what _mm_shuffle_epi8 takes from where. `is_near`: all of them are; then the last 16
  // bytes of the row are the last group, whatever it shares with the one before, and pixels may be of any size.
  std::vector<int32_t> base;
  std::vector<uint8_t> shuffle;
  bool is_near = false;

  int64_t count() const {
    int64_t count = 1;
    for (const int64_t extent : extents) count *= extent;
    return count;
  }
  int64_t row_bytes() const { return static_cast<int64_t>(columns.size()) * pixel_bytes; }

  int64_t source(int64_t row) const {
    int64_t from = 0;
    for (size_t axis = extents.size(); axis-- > 0; row /= extents[axis]) {
      from += offsets[axis][static_cast<size_t>(row % extents[axis])];
    }
    return from;
  }

  // The group of the result's bytes from `first` on.
  void add_shuffle(int64_t first, int64_t in_bytes) {
    int64_t places[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t byte = first + i;
      places[i] = columns[static_cast<size_t>(byte / pixel_bytes)] * pixel_bytes + byte % pixel_bytes;
    }
    const auto [least, most] = std::minmax_element(std::begin(places), std::end(places));
    const int64_t begin = std::min(*least, in_bytes - kGroup);
    base.push_back(*most - begin < kGroup ? static_cast<int32_t>(begin) : -1);
    for (const int64_t place : places) shuffle.push_back(static_cast<uint8_t>(place - begin));
  }

  void find_shuffles(int64_t in_columns) {
    const int64_t in_bytes = in_columns * pixel_bytes, whole = row_bytes() / kGroup * kGroup;
    if (in_bytes < kGroup || whole == 0 || in_bytes > INT32_MAX || pixel_bytes >= kGroup) return;
    for (int64_t byte = 0; byte < whole; byte += kGroup) add_shuffle(byte, in_bytes);
    if (whole < row_bytes()) add_shuffle(row_bytes() - kGroup, in_bytes);
    is_near = std::find(base.begin(), base.end(), -1) == base.end();
    if (is_near) return;
    base.resize(kGroup % pixel_bytes == 0 ? static_cast<size_t>(whole / kGroup) : 0);
  }

  [[gnu::target("avx2")]] void pick_near(const char* from, char* to) const {
    const int64_t groups = static_cast<int64_t>(base.size()), last = row_bytes() - kGroup;
    const auto source = [&](int64_t group) {
      return reinterpret_cast<const __m128i*>(from + base[static_cast<size_t>(group)]);
    };
    const uint8_t* orders = shuffle.data();
    int64_t group = 0;
    for (; group + 2 < groups; group += 2) {
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(source(group))),
                                                   _mm_loadu_si128(source(group + 1)), 1);
      const __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(orders + kGroup * group));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kGroup * group), _mm256_shuffle_epi8(both, order));
    }
    for (; group < groups; ++group) {
      const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i*>(orders + kGroup * group));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + std::min(kGroup * group, last)),
                       _mm_shuffle_epi8(_mm_loadu_si128(source(group)), order));
    }
  }

  template <class T>
  [[gnu::target("ssse3")]] void pick(const char* from, char* to) const {
    T* out = reinterpret_cast<T*>(to);
    const auto* elements = reinterpret_cast<const T*>(from);
    const int64_t width = static_cast<int64_t>(columns.size());
    constexpr auto kPixels = static_cast<int64_t>(16 / sizeof(T));
    const int64_t* places = columns.data();
    int64_t x = 0;
    for (size_t group = 0; group < base.size(); ++group, x += kPixels) {
      if (base[group] < 0) {
        for (int64_t k = x; k < x + kPixels; ++k) out[k] = elements[places[k]];
        continue;
      }
      const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + base[group]));
      const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i*>(shuffle.data() + 16 * group));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm_shuffle_epi8(all, order));
    }
    for (; x < width; ++x) out[x] = elements[places[x]];
  }

  void run_row(const char* from, char* to) const {
    if (keeps_columns) {
      copy_bytes(to, from, static_cast<size_t>(row_bytes()));
      return;
    }
    if (is_near) return pick_near(from, to);
    if (visit_width(pixel_bytes, [&]<class T>() { pick<T>(from, to); })) return;
    for (const int64_t column : columns) {
      std::memcpy(to, from + column * pixel_bytes, static_cast<size_t>(pixel_bytes));
      to += pixel_bytes;
    }
  }

  void run(const char* from, char* to, Range rows) const {
    int64_t before = -1;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t at = source(row);
      char* out = to + row * row_bytes();
      if (at == before) {
        copy_bytes(out, out - row_bytes(), static_cast<size_t>(row_bytes()));
      } else {
        run_row(from + at, out);
      }
      before = at;
    }
  }
};

}  // namespace

bool add_picked_rows(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes) {
  const TensorType &type = context.input_type(0), &result = context.output_type(0);
  if (axes.empty() || type.layout != Layout{} || result.layout != Layout{}) return false;
  if (type.dtype == DType::string || type.dtype == DType::object || bits_of(type.dtype) < 8) return false;
  for (const ResizeAxis& axis : axes) {
    if (axis.in > INT32_MAX) return false;
  }
  if (result.storage_bytes() == 0) return true;
  auto rows = std::make_shared<PickedRows>();
  size_t last = axes.size() - 1;
  rows->pixel_bytes = bits_of(type.dtype) / 8;
  while (last > 0 && is_kept(axes[last])) rows->pixel_bytes *= axes[last--].in;
  std::vector<int64_t> strides(last + 1, rows->pixel_bytes);
  for (size_t i = last; i-- > 0;) strides[i] = strides[i + 1] * axes[i + 1].in;
  for (size_t i = 0; i <= last; ++i) {
    std::vector<int64_t> places;
    for (const ResizeTerms& terms : resize_terms(mode, axes[i])) places.push_back(terms.front().index);
    if (i == last) {
      rows->columns = std::move(places);
      break;
    }
    for (int64_t& place : places) place *= strides[i];
    rows->extents.push_back(axes[i].out);
    rows->offsets.push_back(std::move(places));
  }
  rows->keeps_columns = is_kept(axes[last]);
  rows->find_shuffles(axes[last].in);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step{.kernel = "resize nearest, any axes", .reads = {from}, .writes = {to}};
  step.bytes = static_cast<double>(type.storage_bytes() + result.storage_bytes());
  step.threads =
      static_cast<int>(std::min<int64_t>(worthwhile_threads(4 * step.bytes, context.target.threads), rows->count()));
  step.run = [rows, from, to](const StepArgs& args) {
    rows->run(args.at<const char>(from), args.at<char>(to), split_evenly(rows->count(), args.share, args.shares));
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
