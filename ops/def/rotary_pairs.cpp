// lathe::Rotary: pairs of elements of the last axis, turned by angles whose cosines and sines broadcast to the input:
// y = x * cos + turned(x) * sin. Pairs are (i, i + half), or neighbours where `interleaved` is 1; turned(x) has the
// second of each pair, negative, in the place of the first, and the first in the place of the second.
#include <memory>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_infer.h"
#include "ops/lower.h"
#include "ops/op_def.h"
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

// Rows of the input along its last axis, and where each finds its row of a table.
struct Rows {
  int64_t size = 0, count = 1;
  Dims outer;                             // all axes but the last
  std::vector<int64_t> strides[kTables];  // of the tables, along the outer axes; 0: the same row
  bool is_interleaved = false;

  void turn(const float* x, const float* cosines, const float* sines, float* y, int64_t first, int64_t last) const {
    for (int64_t row = first; row < last; ++row) {
      int64_t at[kTables] = {0, 0}, rest = row;
      for (size_t axis = outer.size(); axis-- > 0;) {
        const int64_t index = rest % outer[axis];
        rest /= outer[axis];
        for (size_t table = 0; table < kTables; ++table) at[table] += index * strides[table][axis];
      }
      if (is_interleaved) {
        turn_neighbours(x + row * size, cosines + at[0], sines + at[1], y + row * size);
      } else {
        turn_halves(x + row * size, cosines + at[0], sines + at[1], y + row * size);
      }
    }
  }

  void turn_halves(const float* __restrict x, const float* __restrict cosines, const float* __restrict sines,
                   float* __restrict y) const {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; ++i) y[i] = x[i] * cosines[i] - x[half + i] * sines[i];
    for (int64_t i = half; i < size; ++i) y[i] = x[i] * cosines[i] + x[i - half] * sines[i];
  }

  void turn_neighbours(const float* __restrict x, const float* __restrict cosines, const float* __restrict sines,
                       float* __restrict y) const {
    for (int64_t i = 0; i + 1 < size; i += 2) {
      y[i] = x[i] * cosines[i] - x[i + 1] * sines[i];
      y[i + 1] = x[i + 1] * cosines[i + 1] + x[i] * sines[i + 1];
    }
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
  for (size_t table = 0; table < kTables; ++table) {
    const Dims& own = *tables[table];
    if (own.empty() || own.size() > dims.size() || own.back() != rows.size) return std::nullopt;
    rows.strides[table].assign(rows.outer.size(), 0);
    int64_t stride = rows.size;
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
