// CumSum and CumProd.
#include <algorithm>
#include <type_traits>

#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

struct Cumulation {
  bool is_product, is_exclusive, is_reverse;
};

// Calls step(from, to, is_first) for each element in the order of accumulation; from is -1 for the neutral element.
template <class Step>
void walk(const AxisSplit& split, const Cumulation& how, Step step) {
  for (int64_t row = 0; row < split.outer * split.inner; ++row) {
    const int64_t base = row / split.inner * split.extent * split.inner + row % split.inner;
    for (int64_t i = 0; i < split.extent; ++i) {
      const auto at = [&](int64_t k) { return base + (how.is_reverse ? split.extent - 1 - k : k) * split.inner; };
      const int64_t from = how.is_exclusive ? (i == 0 ? -1 : at(i - 1)) : at(i);
      step(from, at(i), i == 0);
    }
  }
}

template <class T>
void accumulate(const T* in, T* out, const AxisSplit& split, const Cumulation& how) {
  // Integers wrap: 64-bit unsigned arithmetic has no overflow.
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  Sum sum{};
  walk(split, how, [&](int64_t from, int64_t to, bool is_first) {
    if (is_first) sum = static_cast<Sum>(how.is_product ? 1 : 0);
    if (from >= 0) sum = how.is_product ? sum * static_cast<Sum>(in[from]) : sum + static_cast<Sum>(in[from]);
    out[to] = static_cast<T>(sum);
  });
}

void infer_cumulative(InferContext& context) { context.set_output(0, context.input(0)); }

void run_cumulative(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const int64_t axis = axis_within(context, integer_scalar(context, context.inputs[1], "input 1 (axis)"), data.rank());
  const AxisSplit split = split_at(data.dims(), axis);
  const Cumulation how{context.node.op->name == "CumProd", context.node.attributes.get_int("exclusive", 0) != 0,
                       context.node.attributes.get_int("reverse", 0) != 0};
  Tensor result = make_output(context, data.dtype(), data.dims());
  const bool is_native = visit_native(
      data.dtype(), [&]<class T>() { accumulate<T>(data.data<T>(), result.mutable_data<T>(), split, how); });
  if (!is_native) {
    const std::vector<double> in = reals_of(data);
    double sum = 0;
    walk(split, how, [&](int64_t from, int64_t to, bool is_first) {
      if (is_first) sum = how.is_product ? 1 : 0;
      if (from >= 0) {
        const double value = in[static_cast<size_t>(from)];
        sum = rounded_to(data.dtype(), how.is_product ? sum * value : sum + value);
      }
      store_real(result, to, sum);
    });
  }
  context.outputs[0] = std::move(result);
}

// ---- Lowering of sums along a constant axis

// One line for each of `inner` neighbours: rows are added up, as vectors.
template <class T>
[[gnu::target("avx2")]] void sum_rows(const T* in, T* out, const AxisSplit& split, Cumulation how, Range columns) {
  using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const int64_t step = how.is_reverse ? -split.inner : split.inner;
  const int64_t first = how.is_reverse ? (split.extent - 1) * split.inner : 0;
  const T* before = how.is_exclusive ? in + first : in + first + step;  // what row 1 adds
  for (int64_t c = columns.begin; c < columns.end; ++c) out[first + c] = how.is_exclusive ? T{} : in[first + c];
  for (int64_t i = 1; i < split.extent; ++i) {
    const T *sum = out + first + (i - 1) * step, *next = before + (i - 1) * step;
    T* to = out + first + i * step;
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      to[c] = static_cast<T>(static_cast<Sum>(sum[c]) + static_cast<Sum>(next[c]));
    }
  }
}

// Four lines at a time, so that one sum does not wait for the sum before.
template <class T>
void sum_lines(const T* in, T* out, int64_t extent, Cumulation how, Range lines) {
  constexpr int64_t kTogether = 4;
  using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const int64_t step = how.is_reverse ? -1 : 1, first = how.is_reverse ? extent - 1 : 0;
  const auto sum_together = [&](int64_t line, auto count) {
    Sum sums[kTogether] = {};
    for (int64_t i = 0; i < extent; ++i) {
      for (int64_t k = 0; k < count(); ++k) {
        const int64_t at = (line + k) * extent + first + i * step;
        const auto x = static_cast<Sum>(in[at]);
        out[at] = static_cast<T>(how.is_exclusive ? sums[k] : sums[k] + x);
        sums[k] += x;
      }
    }
  };
  int64_t line = lines.begin;
  for (; line + kTogether <= lines.end; line += kTogether)
    sum_together(line, std::integral_constant<int64_t, kTogether>());
  for (; line < lines.end; ++line) sum_together(line, std::integral_constant<int64_t, 1>());
}

template <class T>
void sum_share(const T* in, T* out, const AxisSplit& split, Cumulation how, const StepArgs& args) {
  if (split.inner == 1)
    return sum_lines(in, out, split.extent, how, split_evenly(split.outer, args.share, args.shares));
  const Range blocks = split_evenly((split.inner + 15) / 16, args.share, args.shares);
  const Range columns{blocks.begin * 16, std::min<long>(blocks.end * 16, split.inner)};
  const int64_t plane = split.extent * split.inner;
  for (int64_t i = 0; i < split.outer; ++i) sum_rows(in + i * plane, out + i * plane, split, how, columns);
}

template <class Visit>
bool visit_summed(DType dtype, Visit visit) {
  if (dtype == DType::f32) return visit.template operator()<float>(), true;
  if (dtype == DType::i64) return visit.template operator()<int64_t>(), true;
  if (dtype == DType::i32) return visit.template operator()<int32_t>(), true;
  if (dtype == DType::f64) return visit.template operator()<double>(), true;
  return false;
}

bool lower_cumulative(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const Tensor axis = context.constant(1);
  const InferContext messages(context.node, {}, {});
  if (!axis.defined() || !visit_summed(type.dtype, []<class T>() {})) return false;
  const AxisSplit split =
      split_at(type.extents(), axis_within(messages, integer_scalar(messages, axis, "input 1 (axis)"), type.rank()));
  if (split.outer * split.extent * split.inner == 0) return true;
  const Cumulation how{false, context.node.attributes.get_int("exclusive", 0) != 0,
                       context.node.attributes.get_int("reverse", 0) != 0};
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step;
  step.kernel = split.inner == 1 ? "running sums of lines" : "running sums of rows";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 2 * static_cast<double>(type.storage_bytes());
  step.flop = static_cast<double>(split.outer * split.extent * split.inner);
  constexpr double kWorkOfElement = 32;  // in floating point operations at full speed
  const int64_t shares = split.inner == 1 ? split.outer : (split.inner + 15) / 16;
  step.threads = static_cast<int>(
      std::min<int64_t>(worthwhile_threads(kWorkOfElement * step.flop, context.target.threads), shares));
  step.run = [=, dtype = type.dtype](const StepArgs& args) {
    visit_summed(dtype, [&]<class T>() { sum_share(args.at<const T>(from), args.at<T>(to), split, how, args); });
  };
  context.add(std::move(step));
  return true;
}

OpDef cumulative(const char* name, int since, LowerFn* lower) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = name,
                     .since = since,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .attributes = {{"exclusive", Kind::integer}, {"reverse", Kind::integer}},
                     .infer = infer_cumulative,
                     .reference = run_cumulative},
          .lower = lower};
}

}  // namespace

std::vector<OpDef> cumulative_ops() {
  return {cumulative("CumSum", 11, lower_cumulative), cumulative("CumProd", 26, nullptr)};
}

}  // namespace lathe::ops
