// CumSum and CumProd.
#include "ops/copy_elements.h"
#include "ops/copy_infer.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

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

OpDef cumulative(const char* name, int since) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = name,
                     .since = since,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .attributes = {{"exclusive", Kind::integer}, {"reverse", Kind::integer}},
                     .infer = infer_cumulative,
                     .reference = run_cumulative}};
}

}  // namespace

std::vector<OpDef> cumulative_ops() { return {cumulative("CumSum", 11), cumulative("CumProd", 26)}; }

}  // namespace lathe::ops
