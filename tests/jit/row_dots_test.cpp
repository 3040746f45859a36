#include "jit/kernels/gemm/row_dots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;
using testing::isas_here;

struct Strides {
  int64_t row = 0, column = 0;
};

struct Case {
  RowDotsPlan plan;
  int64_t k = 0, tiles = 1, a_gap = 0;
  Strides c;
  std::vector<Strides> inputs;
};

// product * input 1 + input 2 ..., as far as there are inputs
Expression scaled_sum(size_t inputs) {
  Expression e;
  e.inputs.assign(inputs + 1, DType::f32);
  int x = e.add({ExprOp::input, 0});
  for (size_t i = 1; i <= inputs; ++i) {
    const int other = e.add({ExprOp::input, static_cast<int>(i)});
    x = e.add({i % 2 == 1 ? ExprOp::mul : ExprOp::add, x, other});
  }
  return e;
}

size_t extent(int64_t rows, int64_t columns, const Strides& strides) {
  return static_cast<size_t>((rows - 1) * strides.row + (columns - 1) * strides.column + 1);
}

// Operands between unreadable pages; what lies between C's elements must stay NaN.
void check(const Case& test, std::mt19937& random) {
  const RowDotsPlan& plan = test.plan;
  const int64_t rows = plan.rows * test.tiles, columns = plan.columns, k = test.k, lanes = vector_lanes(plan.isa);
  const int64_t steps = (k + lanes - 1) / lanes, a_stride = k + test.a_gap;
  const GuardedFloats a(static_cast<size_t>((rows - 1) * a_stride + k)),
      b(static_cast<size_t>(steps * columns * lanes)), c(extent(rows, columns, test.c));
  for (int64_t row = 0; row < rows; ++row) {  // gaps stay NaN
    for (int64_t i = 0; i < k; ++i)
      a[static_cast<size_t>(row * a_stride + i)] = std::uniform_real_distribution<float>(-1, 1)(random);
  }
  const auto b_at = [&](int64_t i, int64_t column) {
    return static_cast<size_t>((i / lanes * columns + column) * lanes + i % lanes);
  };
  for (int64_t i = 0; i < steps * lanes; ++i) {
    for (int64_t column = 0; column < columns; ++column) {
      b[b_at(i, column)] = i < k ? std::uniform_real_distribution<float>(-1, 1)(random) : 0;
    }
  }
  RowDotsArgs args = {};
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.k = k;
  args.tiles = test.tiles;
  args.a_stride_bytes = a_stride * 4;
  args.c_row_bytes = test.c.row * 4;
  args.c_column_bytes = test.c.column * 4;
  std::vector<std::unique_ptr<GuardedFloats>> inputs;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    inputs.push_back(std::make_unique<GuardedFloats>(extent(rows, columns, test.inputs[i])));
    inputs[i]->randomize(random, -1, 1);
    args.inputs[i] = inputs[i]->data();
    args.input_row_bytes[i] = test.inputs[i].row * 4;
    args.input_column_bytes[i] = test.inputs[i].column * 4;
  }
  row_dots(plan)(&args);
  std::vector<bool> is_output(c.size(), false);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      double sum = 0, magnitude = 1;
      for (int64_t i = 0; i < k; ++i) {
        const double product =
            static_cast<double>(a[static_cast<size_t>(row * a_stride + i)]) * static_cast<double>(b[b_at(i, column)]);
        sum += product;
        magnitude += std::abs(product);
      }
      for (size_t i = 0; i < inputs.size(); ++i) {
        const double x = (*inputs[i])[static_cast<size_t>(row * test.inputs[i].row + column * test.inputs[i].column)];
        sum = i % 2 == 0 ? sum * x : sum + x;
      }
      const auto at = static_cast<size_t>(row * test.c.row + column * test.c.column);
      is_output[at] = true;
      ASSERT_NEAR(c[at], sum, magnitude * static_cast<double>(k + 8) * 0x1p-24) << row << ' ' << column;
    }
  }
  for (size_t i = 0; i < c.size(); ++i) ASSERT_TRUE(is_output[i] || std::isnan(c[i])) << "written at " << i;
}

TEST(RowDots, MatchFloat64OverRandomShapes) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int tried = 0;
  for (int round = 0; round < 2000 && tried < 400; ++round) {
    Case test;
    RowDotsPlan& plan = test.plan;
    plan.isa = isas_here()[static_cast<size_t>(pick(0, static_cast<int>(isas_here().size()) - 1))];
    plan.rows = pick(1, 16);
    plan.columns = pick(1, 8);
    test.k = pick(0, 3) == 0 ? pick(0, 20) : pick(1, 300);
    test.tiles = pick(1, 4);
    test.a_gap = pick(0, 1) * pick(1, 40);
    const Strides dense = {plan.columns, 1}, apart = {1, plan.rows * test.tiles + pick(0, 3)},
                  wide = {plan.columns + pick(1, 5), 1}, every_row = {0, 1}, every_element = {0, 0}, by_row = {1, 0};
    plan.c = pick(0, 1) != 0 ? RowDotsAccess::dense : RowDotsAccess::strided;
    test.c = plan.c == RowDotsAccess::dense ? dense : pick(0, 1) != 0 ? apart : wide;
    const int inputs = pick(0, 3);
    for (int i = 0; i < inputs; ++i) {
      const int kind = pick(0, 5);
      plan.inputs.push_back(kind == 0  ? RowDotsAccess::dense
                            : kind < 3 ? RowDotsAccess::repeated
                                       : RowDotsAccess::strided);
      const Strides kinds[] = {dense, every_row, every_element, by_row, apart, wide};
      test.inputs.push_back(kinds[kind]);
    }
    if (inputs > 0) plan.epilogue = scaled_sum(static_cast<size_t>(inputs));
    if (!plan.is_valid()) continue;
    SCOPED_TRACE(plan.key() + " k " + std::to_string(test.k) + " tiles " + std::to_string(test.tiles));
    check(test, random);
    if (HasFatalFailure()) return;
    ++tried;
  }
  EXPECT_GE(tried, 150);
}

TEST(RowDots, RefuseMoreOutputsThanLanes) {
  for (const Isa isa : isas_here()) {
    RowDotsPlan plan;
    plan.isa = isa;
    plan.rows = vector_lanes(isa);
    EXPECT_TRUE(plan.is_valid());
    plan.columns = 2;
    EXPECT_FALSE(plan.is_valid());
    plan.rows = 1;
    plan.columns = RowDotsPlan::most_columns(isa) + 1;
    EXPECT_FALSE(plan.is_valid());
    EXPECT_THROW(row_dots(plan), JitError);
  }
}

}  // namespace
}  // namespace lathe
