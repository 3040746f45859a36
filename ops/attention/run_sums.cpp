#include "ops/attention/run_sums.h"

#include <algorithm>

#include "src/base/divide.h"

namespace lathe {
namespace {

// One number plus a row of them.
PointwisePlan sum_plan(Isa isa) {
  PointwisePlan plan;
  plan.isa = isa;
  plan.expression.inputs = {DType::f32, DType::f32};
  const int one = plan.expression.add({.op = ExprOp::input, .a = 0});
  const int row = plan.expression.add({.op = ExprOp::input, .a = 1});
  plan.expression.add({.op = ExprOp::add, .a = one, .b = row});
  plan.access = {PointwiseAccess::scalar, PointwiseAccess::contiguous};
  return plan;
}

}  // namespace

RunSums::RunSums(Isa isa, int64_t run) : run_(run), sum_(pointwise_kernel(sum_plan(isa))) {}

// `runs` elements of `first`, each added to all of `second`.
void RunSums::add(const float* first, const float* second, int64_t length, int64_t runs, float* out) const noexcept {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  if (length == 0 || runs == 0) return;
  const void* const inputs[] = {first, second};
  const int64_t strides[] = {kBytes, 0};
  const PointwiseArgs args{inputs, strides, out, length * kBytes, length, runs, nullptr};
  sum_.entry()(&args);
}

void RunSums::make(const Rows& first, const Rows& second, const Range& rows, const Range& keys,
                   const Sums& out) const noexcept {
  const int64_t head_end = std::min<int64_t>(round_up(keys.begin, run_), keys.end);
  const int64_t tail_begin = std::max<int64_t>(keys.end / run_ * run_, head_end);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float *of_runs = first.data + row * first.stride, *within = second.data + row * second.stride;
    float* sums = out.data + (row - rows.begin) * out.stride;
    add(of_runs + keys.begin / run_, within + keys.begin % run_, head_end - keys.begin, 1, sums);
    add(of_runs + head_end / run_, within, run_, (tail_begin - head_end) / run_, sums + (head_end - keys.begin));
    add(of_runs + tail_begin / run_, within, keys.end - tail_begin, 1, sums + (tail_begin - keys.begin));
  }
}

}  // namespace lathe
