// lathe::Rotary: pairs of elements of the last axis, turned by angles whose cosines and sines broadcast to the input:
// y = x * cos + turned(x) * sin. Pairs are (i, i + half), or neighbours where `interleaved` is 1; turned(x) has the
// second of each pair, negative, in the place of the first, and the first in the place of the second. The last axis of
// both tables is that of the input, or half of it: one number for both elements of each pair.
#include <immintrin.h>

#include <algorithm>
#include <memory>

#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

constexpr size_t kTables = 2;
// Below this much traffic a second thread costs more than it saves.
constexpr double kBytesForThreads = 128e3;

void infer(InferContext& context) {
  const TensorType& x = context.input(0);
  if (x.has_rank) {
    if (x.rank() < 1) context.fail("the input has no axis of pairs");
    if (x.dims.back().known() && x.dims.back().extent % 2 != 0)
      context.fail("an odd number of elements makes no pairs");
    for (int i = 1; i <= static_cast<int>(kTables); ++i) {
      if (context.input(i).has_rank && context.input(i).rank() > x.rank()) context.fail("a table of too many axes");
    }
  }
  context.set_output(0, x);
}

// ---- One row: by numbers of each element (whole), or of each pair

[[gnu::target("avx2,fma")]] void turn_halves(const float* __restrict x, const float* __restrict cosines,
                                             const float* __restrict sines, float* __restrict y, int64_t half,
                                             bool is_whole) {
  const float *second_cosines = cosines + (is_whole ? half : 0), *second_sines = sines + (is_whole ? half : 0);
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    y[i] = first * cosines[i] - second * sines[i];
    y[half + i] = second * second_cosines[i] + first * second_sines[i];
  }
}

// Eight numbers of four pairs.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 of_pairs(const float* numbers, bool is_whole) {
  if (is_whole) return _mm256_loadu_ps(numbers);
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(numbers)), twice);
}

template <bool kIsWhole>
[[gnu::target("avx2,fma")]] void turn_neighbours(const float* __restrict x, const float* __restrict cosines,
                                                 const float* __restrict sines, float* __restrict y, int64_t size) {
  constexpr int64_t kShare = kIsWhole ? 1 : 2;
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 both = _mm256_loadu_ps(x + i), exchanged = _mm256_permute_ps(both, 0xb1);
    const __m256 by_sines = _mm256_mul_ps(exchanged, of_pairs(sines + i / kShare, kIsWhole));
    _mm256_storeu_ps(y + i, _mm256_fmaddsub_ps(both, of_pairs(cosines + i / kShare, kIsWhole), by_sines));
  }
  for (; i < size; i += 2) {
    const int64_t first = i / kShare, second = kIsWhole ? i + 1 : first;
    const float even = x[i], odd = x[i + 1];
    y[i] = even * cosines[first] - odd * sines[first];
    y[i + 1] = odd * cosines[second] + even * sines[second];
  }
}

// Rows of the input along its last axis, and where each finds its row of a table.
struct Rows {
  int64_t size = 0, count = 1;
  Dims outer;                             // all axes but the last
  std::vector<int64_t> strides[kTables];  // of the tables, along the outer axes; 0: the same row
  bool is_interleaved = false, is_whole = true;

  void turn(const float* x, const float* cosines, const float* sines, float* y, int64_t first, int64_t last) const {
    const int64_t neighbours = outer.empty() ? 1 : outer.back();
    const auto step = [&](size_t table) { return outer.empty() ? 0 : strides[table].back(); };
    for (int64_t row = first; row < last;) {
      int64_t at[kTables] = {0, 0}, rest = row;
      for (size_t axis = outer.size(); axis-- > 0;) {
        const int64_t index = rest % outer[axis];
        rest /= outer[axis];
        for (size_t table = 0; table < kTables; ++table) at[table] += index * strides[table][axis];
      }
      const int64_t end = std::min(last, row - row % neighbours + neighbours);
      for (; row < end; ++row) {
        turn_row(x + row * size, cosines + at[0], sines + at[1], y + row * size);
        for (size_t table = 0; table < kTables; ++table) at[table] += step(table);
      }
    }
  }

  void turn_row(const float* x, const float* cosines, const float* sines, float* y) const {
    if (!is_interleaved) return turn_halves(x, cosines, sines, y, size / 2, is_whole);
    is_whole ? turn_neighbours<true>(x, cosines, sines, y, size) : turn_neighbours<false>(x, cosines, sines, y, size);
  }
};

// nullopt: a table does not broadcast to the input, or has another last axis.
std::optional<Rows> rows_of(const Node& node, const Dims& dims, const Dims* const (&tables)[kTables]) {
  Rows rows;
  rows.is_interleaved = node.attributes.get_int("interleaved", 0) != 0;
  if (dims.empty() || dims.back() % 2 != 0) return std::nullopt;
  rows.size = dims.back();
  rows.outer.assign(dims.begin(), dims.end() - 1);
  for (const int64_t extent : rows.outer) rows.count *= extent;
  rows.is_whole = !tables[0]->empty() && tables[0]->back() == rows.size;
  const int64_t width = rows.is_whole ? rows.size : rows.size / 2;
  for (size_t table = 0; table < kTables; ++table) {
    const Dims& own = *tables[table];
    if (own.empty() || own.size() > dims.size() || own.back() != width) return std::nullopt;
    rows.strides[table].assign(rows.outer.size(), 0);
    int64_t stride = width;
    for (size_t back = 1; back < own.size(); ++back) {
      const int64_t extent = own[own.size() - 1 - back];
      const size_t axis = rows.outer.size() - back;
      if (extent != 1 && extent != rows.outer[axis]) return std::nullopt;
      if (extent != 1) rows.strides[table][axis] = stride;
      stride *= extent;
    }
  }
  return rows;
}

void reference(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const auto rows = rows_of(context.node, x.dims(), {&context.inputs[1].dims(), &context.inputs[2].dims()});
  for (const Tensor& input : context.inputs) {
    if (input.dtype() != DType::f32) context.fail("takes float32 only");
  }
  if (!rows) context.fail("the tables do not fit the input");
  Tensor y = make_output(context, DType::f32, x.dims());
  rows->turn(x.data<float>(), context.inputs[1].data<float>(), context.inputs[2].data<float>(), y.mutable_data<float>(),
             0, x.size() == 0 ? 0 : rows->count);
  context.outputs[0] = std::move(y);
}

bool lower(LowerContext& context) {
  for (int i = 0; i < 3; ++i) {
    if (context.input_type(i).dtype != DType::f32 || context.input_type(i).layout.channel_block != 0) return false;
  }
  const Dims cosines = context.input_type(1).extents(), sines = context.input_type(2).extents();
  const auto rows = rows_of(context.node, context.input_type(0).extents(), {&cosines, &sines});
  if (!rows) return false;
  if (rows->count * rows->size == 0) return true;
  const BufferId x = context.buffer(context.input(0)), cos = context.buffer(context.input(1)),
                 sin = context.buffer(context.input(2)), y = context.buffer(context.output(0));
  Step step;
  step.kernel = rows->is_interleaved ? "rotary neighbours" : "rotary halves";
  step.reads = {x, cos, sin};
  step.writes = {y};
  step.flop = 3.0 * static_cast<double>(rows->count * rows->size);
  step.bytes = 8.0 * static_cast<double>(rows->count * rows->size);
  step.threads = step.bytes > kBytesForThreads ? context.target.threads : 1;
  step.run = [rows = *rows, x, cos, sin, y](const StepArgs& args) {
    const Range part = split_evenly(rows.count, args.share, args.shares);
    rows.turn(args.at<const float>(x), args.at<const float>(cos), args.at<const float>(sin), args.at<float>(y),
              part.begin, part.end);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> rotary_pairs_ops() {
  // Inputs: x, cosines, sines.
  return {{.schema = {.name = "Rotary",
                      .domain = "lathe",
                      .min_inputs = 3,
                      .max_inputs = 3,
                      .attributes = {{"interleaved", AttributeSpec::Kind::integer}},
                      .infer = infer,
                      .reference = reference},
           .lower = lower}};
}

}  // namespace lathe::ops
