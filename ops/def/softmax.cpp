// Softmax, LogSoftmax and Hardmax.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "graph/softmax_axes.h"
#include "ops/copy/copy_step.h"
#include "ops/expansion.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/rows/byte_softmax.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

enum class Kind : uint8_t { softmax, log_softmax, hardmax };

Kind kind_of(const Node& node) {
  if (node.op->name == "LogSoftmax") return Kind::log_softmax;
  return node.op->name == "Hardmax" ? Kind::hardmax : Kind::softmax;
}

template <class Context>
SoftmaxAxes axes_of(const Context& context, int64_t rank) {
  const SoftmaxAxes axes = softmax_axes(context.node, rank);
  // A scalar may name the one axis that it lacks, and flattening at the rank itself leaves rows of one element.
  const bool is_there = axes.first >= std::min<int64_t>(0, rank - 1) && axes.first < std::max<int64_t>(rank, 1);
  if (!is_there && !(axes.first == rank && axes.are_innermost())) {
    const int64_t named = axes.first < 0 ? axes.first - rank : axes.first;
    context.fail("axis " + std::to_string(named) + " is out of range for rank " + std::to_string(rank));
  }
  return axes;
}

AxisSplit split_of(const Dims& dims, const SoftmaxAxes& axes) {
  AxisSplit split;
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    int64_t& part = axes.have(i) ? split.extent : i < axes.first ? split.outer : split.inner;
    part *= dims[static_cast<size_t>(i)];
  }
  return split;
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!is_float(data.dtype)) context.fail("input 0 is " + std::string(name_of(data.dtype)) + ", expected a float type");
  if (data.has_rank) axes_of(context, data.rank());
  context.set_output(0, data);
}

// The steps of Softmax are operators by definition: each rounds to a 16-bit type.
struct StepRounding {
  DType dtype;
  bool is_needed = dtype == DType::f16 || dtype == DType::bf16;
  double operator()(double value) const { return is_needed ? rounded_to(dtype, value) : value; }
};

void normalize(Kind kind, double* at, int64_t count, int64_t stride, const StepRounding& rounded) {
  double top = -INFINITY, sum = 0;
  int64_t best = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (at[i * stride] > top) best = i;
    if (!(at[i * stride] <= top)) top = at[i * stride];
  }
  const auto exponential = [&](double value) { return rounded(std::exp(rounded(value - top))); };
  for (int64_t i = 0; i < count; ++i) sum += exponential(at[i * stride]);
  sum = rounded(sum);
  for (int64_t i = 0; i < count; ++i) {
    double& value = at[i * stride];
    switch (kind) {
      case Kind::softmax:
        value = exponential(value) / sum;
        break;
      case Kind::log_softmax:
        value = value - top - std::log(sum);
        break;
      case Kind::hardmax:
        value = i == best ? 1 : 0;
        break;
    }
  }
}

void reference(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const AxisSplit split = split_of(data.dims(), axes_of(context, data.rank()));
  const Kind kind = kind_of(context.node);
  std::vector<double> values = reals_of(data);
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    for (int64_t inner = 0; inner < split.inner; ++inner) {
      double* first = values.data() + outer * split.extent * split.inner + inner;
      normalize(kind, first, split.extent, split.inner, {kind == Kind::softmax ? data.dtype() : DType::f64});
    }
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), values);
}

// Two passes over at most L2-sized rows and one exp an element: about 2 ns per vector.
constexpr int64_t kElementsForThreads = 16384;

struct SoftmaxCall {
  Kernel<SoftmaxFn> kernel;
  AxisSplit split;
  bool is_dense = true;  // the kernel goes over rows
  BufferId from = BufferId::none, to = BufferId::none;
  int64_t bytes = 4;               // of a result
  BufferId rows = BufferId::none;  // where exponentials wait, each thread's own
  float factor = 1;

  void operator()(const StepArgs& args) const {
    const auto* in = args.at<const float>(from);
    auto* out = args.at<char>(to);
    float* row = rows == BufferId::none ? nullptr : args.own<float>(rows);
    if (is_dense) {
      const Range range = split_evenly(split.outer, args.share, args.shares);
      if (range.begin == range.end) return;
      const int64_t columns = split.extent * split.inner, first = range.begin * columns;
      const SoftmaxArgs call{in + first, out + first * bytes, range.end - range.begin, columns, columns * bytes, row,
                             factor};
      kernel(&call);
      return;
    }
    // Columns are split in whole lines of 16, through all outer indices; of few lines the outer indices are.
    const int64_t line_count = (split.inner + 15) / 16;
    const bool splits_lines = line_count >= args.shares;
    const Range lines = splits_lines ? split_evenly(line_count, args.share, args.shares) : Range{0, line_count};
    const Range outers = splits_lines ? Range{0, split.outer} : split_evenly(split.outer, args.share, args.shares);
    const int64_t begin = lines.begin * 16, end = std::min<int64_t>(lines.end * 16, split.inner);
    if (begin >= end) return;
    for (int64_t outer = outers.begin; outer < outers.end; ++outer) {
      const int64_t first = outer * split.extent * split.inner + begin;
      const SoftmaxArgs call{in + first, out + first * bytes, split.extent, end - begin, split.inner * 4, row};
      kernel(&call);
    }
  }
};

// Rows that lie element by element between each other, as the heads of an attention that are mixed; 1: they lie apart,
// or a vector is not filled by whole turns of them.
int interleaved_rows(int64_t inner, Isa isa) {
  return inner < vector_lanes(isa) && std::has_single_bit(static_cast<uint64_t>(inner)) ? static_cast<int>(inner) : 1;
}

// The elements of a column lie in so few sets of L1 that it cannot hold them: pictures whose planes are whole pages.
bool crowds_cache(const AxisSplit& split) {
  constexpr int64_t kLine = 64, kSets = 64, kWays = 8;  // at least
  constexpr int64_t kMostRows = 1024;                   // that wait in 256 KB, well within L2
  const int64_t stride = split.inner * static_cast<int64_t>(sizeof(float));
  if (stride % kLine != 0 || split.extent > kMostRows) return false;
  return split.extent * std::gcd(stride / kLine, kSets) > kWays * kSets;
}

bool lower(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const Kind kind = kind_of(context.node);
  if (type.dtype != DType::f32 || kind == Kind::hardmax) return false;
  const Dims dims = type.extents();
  const InferContext messages(context.node, {}, {});
  const AxisSplit split = split_of(dims, axes_of(messages, type.rank()));
  const int64_t count = split.outer * split.extent * split.inner;
  if (count == 0) return true;
  SoftmaxPlan plan{context.target.isa, kind == Kind::log_softmax};
  plan.interleaved = interleaved_rows(split.inner, context.target.isa);
  plan.is_strided = split.inner > plan.interleaved;
  SoftmaxCall call{.split = split,
                   .is_dense = !plan.is_strided,
                   .from = context.buffer(context.input(0)),
                   .to = context.buffer(context.output(0))};
  Step step{.reads = {call.from}, .writes = {call.to}};
  const bool is_split = count >= kElementsForThreads && (split.inner > 16 || split.outer > 1);
  step.threads = is_split ? context.target.threads : 1;
  if (const auto& epilogue = context.node.epilogue) {
    const auto bytes = byte_softmax(context.target.isa, epilogue->expression);
    if (!bytes || plan.is_log || split.inner > 1) return false;
    plan = bytes->plan;
    call.factor = bytes->factor;
    call.bytes = 1;
    call.rows = context.thread_scratch(checked_bytes(DType::f32, {kSoftmaxRowsTogether, split.extent}));
  }
  plan.keeps_columns = plan.is_strided && crowds_cache(split);
  if (plan.keeps_columns)
    call.rows = context.thread_scratch(checked_bytes(DType::f32, {kSoftmaxColumnsTogether, split.extent}));
  if (call.rows != BufferId::none) {
    step.reads.push_back(call.rows);
    step.writes.push_back(call.rows);
  }
  if (call.bytes == 4) step.in_place = {{call.to, call.from}};
  call.kernel = softmax_kernel(plan);
  step.kernel = to_string(plan);
  // Slots of the multiplying pipes, each of which could do two operations: eight of an exponential (with its scaling
  // by a power of two) where it has a table, else ten, and one of the factor.
  step.flop = (has_avx512(context.target.isa) ? 18.0 : 22.0) * static_cast<double>(count);
  step.bytes = static_cast<double>((4 + call.bytes) * count);
  step.run = std::move(call);
  context.add(std::move(step));
  return true;
}

// One at the first of the largest elements. Flattened inputs (up to version 12) only where nothing is to be flattened.
bool expand_hardmax(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank || type.rank() == 0 || type.dtype != DType::f32) return false;
  const SoftmaxAxes axes = axes_of(context, type.rank());
  if (axes.end - axes.first != 1) return false;
  const int64_t axis = axes.first;
  const Dim& extent = type.dims[static_cast<size_t>(axis)];
  if (!extent.known() || extent.extent == 0) return false;
  const ValueId best = context.add("ArgMax", {context.input(0)}, {{"axis", axis}, {"keepdims", int64_t{0}}});
  const ValueId values = context.constant(Tensor::from<float>({2}, {0, 1}));
  context.set_output(0, context.add("OneHot", {best, context.longs({extent.extent}), values}, {{"axis", axis}}));
  return true;
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  std::vector<OpDef> defs;
  for (const std::string_view name : {"Softmax", "LogSoftmax", "Hardmax"}) {
    for (const bool is_old : {true, false}) {
      defs.push_back({.schema = {.name = name,
                                 .since = is_old ? 1 : 13,
                                 .until = is_old ? 12 : 1 << 20,
                                 .attributes = {{"axis", AttributeSpec::Kind::integer}},
                                 .infer = infer,
                                 .reference = reference,
                                 .expand = name == "Hardmax" ? expand_hardmax : nullptr},
                      .lower = lower});
    }
  }
  return defs;
}

}  // namespace lathe::ops
