#include "jit/kernels/rows/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

struct Expected {
  double value, bound;
};

Expected expected_of(const ReducePlan& plan, const float* from, int64_t count, int64_t stride, float scale) {
  const double eps = 6e-8 * static_cast<double>(count + 2);
  double result = plan.op == ReduceOp::product   ? 1
                  : plan.op == ReduceOp::maximum ? -INFINITY
                  : plan.op == ReduceOp::minimum ? INFINITY
                                                 : 0;
  double absolutes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(from[i * stride]);
    switch (plan.op) {
      case ReduceOp::sum:
        result += x;
        absolutes += std::abs(x);
        break;
      case ReduceOp::sum_squares:
        result += x * x;
        absolutes += x * x;
        break;
      case ReduceOp::sum_absolutes:
        result += std::abs(x);
        absolutes += std::abs(x);
        break;
      case ReduceOp::product:
        result *= x;
        absolutes = std::abs(result);
        break;
      case ReduceOp::maximum:
        result = std::max(result, x);
        break;
      case ReduceOp::minimum:
        result = std::min(result, x);
        break;
    }
  }
  const double bound = absolutes * eps;
  switch (plan.finish) {
    case ReduceFinish::none:
      return {result, bound};
    case ReduceFinish::scale:
      return {result * static_cast<double>(scale), bound + std::abs(result) * 6e-8};
    case ReduceFinish::square_root:
      return {std::sqrt(result), std::sqrt(result) * eps + 1e-20};
    case ReduceFinish::logarithm:
      return {std::log(result), bound / result + 1e-6 * (1 + std::abs(std::log(result)))};
  }
  return {};
}

void check(const ReducePlan& plan, int64_t rows, int64_t columns, std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(plan.isa)) + " " + to_string(plan) + " " + std::to_string(rows) + "x" +
               std::to_string(columns));
  const int64_t lines = plan.is_strided ? columns : rows, count = plan.is_strided ? rows : columns;
  GuardedFloats from(static_cast<size_t>(rows * columns), random() % 2 == 0),
      to(static_cast<size_t>(lines), random() % 2 == 0);
  from.randomize(random, plan.finish >= ReduceFinish::square_root ? 0.1f : -2.0f, 2.0f);
  const float scale = 0.37f;
  const ReduceArgs args{from.data(), to.data(), rows, columns, columns * 4, scale};
  reduce_kernel(plan)(&args);
  for (int64_t line = 0; line < lines; ++line) {
    const float* first = from.data() + (plan.is_strided ? line : line * columns);
    const Expected expected = expected_of(plan, first, count, plan.is_strided ? columns : 1, scale);
    ASSERT_NEAR(to[static_cast<size_t>(line)], expected.value, expected.bound) << "line " << line;
  }
}

TEST(ReduceKernel, MatchesFloat64ForEveryPlanAndTail) {
  std::mt19937 random(8);
  for (const Isa isa : testing::isas_here()) {
    for (int op = 0; op < 6; ++op) {
      for (int finish = 0; finish < 4; ++finish) {
        for (const bool is_strided : {false, true}) {
          const ReducePlan plan{isa, static_cast<ReduceOp>(op), static_cast<ReduceFinish>(finish), is_strided};
          for (int64_t columns = 1; columns <= 70; columns += 1 + static_cast<int64_t>(random() % 3)) {
            check(plan, 1 + static_cast<int64_t>(random() % 9), columns, random);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ReduceKernel, GivesNaNForAMaximumOverNaN) {
  for (const Isa isa : testing::isas_here()) {
    for (const ReduceOp op : {ReduceOp::maximum, ReduceOp::minimum}) {
      for (size_t place = 0; place < 150; ++place) {
        GuardedFloats from(150), to(1);
        for (size_t i = 0; i < 150; ++i) from[i] = static_cast<float>(i) - 70;
        from[place] = std::nanf("");
        const ReduceArgs args{from.data(), to.data(), 1, 150, 0, 0};
        reduce_kernel({isa, op, ReduceFinish::none, false})(&args);
        ASSERT_TRUE(std::isnan(to[0])) << place;
        GuardedFloats columns(150);
        const ReduceArgs strided{from.data(), columns.data(), 1, 150, 600, 0};
        reduce_kernel({isa, op, ReduceFinish::none, true})(&strided);
        for (size_t i = 0; i < 150; ++i) ASSERT_EQ(std::isnan(columns[i]), i == place);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
