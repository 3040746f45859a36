// Products of a row with many zeros, which leave the rows of B that these meet in memory.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/gemm/bfp20_pack.h"
#include "ops/gemm/sparse_row_product.h"
#include "tests/isas_here.h"
#include "tests/ops/rounded_product.h"

namespace lathe::testing {
namespace {

constexpr double kHalfUnit = 0x1p-20, kRounding = 0x1p-24;

GemmEpilogue rectified_with_bias() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32, DType::f32};
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  const int sum = e.add({ExprOp::add, e.add({ExprOp::add, input(0), input(1)}), input(2)});
  e.add({ExprOp::max, sum, e.add({.op = ExprOp::constant, .value = 0})});
  epilogue.inputs = {GemmInputAccess::columns, GemmInputAccess::uniform};
  return epilogue;
}

// Columns of sizes far apart; one of zeros.
float element(std::mt19937& random, int64_t column) {
  return column == 3 ? 0 : std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(column % 40) - 20);
}

struct Case {
  int64_t n, k;
  int shares;
  double zeros;  // of A's elements
  bool is_turned, has_epilogue;
};

std::ostream& operator<<(std::ostream& out, const Case& test) {
  return out << test.k << "x" << test.n << " shares " << test.shares << " zeros " << test.zeros << " turned "
             << test.is_turned << " epilogue " << test.has_epilogue;
}

class SparseRowTest : public ::testing::TestWithParam<Isa> {
 protected:
  // Operands of a case, all at guard pages.
  struct Bench : RoundedOperands {
    Bench(const Case& test, Isa isa, std::mt19937& random)
        : RoundedOperands({1, test.n, test.k, 0, test.is_turned, test.has_epilogue, test.shares}, random, element),
          product({test.n, test.k, isa, test.shares,
                   test.has_epilogue ? std::optional(rectified_with_bias()) : std::nullopt}),
          bias(static_cast<size_t>(test.n)),
          uniform(1),
          packed(static_cast<size_t>(product.packed_words())),
          sums(static_cast<size_t>(product.sum_elements() * test.shares)) {
      for (size_t row = 0; row < a.size(); ++row)
        if (std::uniform_real_distribution<double>()(random) < test.zeros) a[row] = 0;
      bias.randomize(random, -1, 1);
      uniform[0] = 0.25F;
    }

    float& at(int64_t row, int64_t column) { return b[place(row, column)]; }
    void run(float scale = 1) {
      product.pack(view, scale, packed.data(), [](size_t) {});
      const int shares = product.problem().shares;
      for (int share = 0; share < shares; ++share) {
        const GuardedFloats taken(static_cast<size_t>(product.taken_elements()));
        product.multiply(a.data(), packed.data(), sums.data() + share * product.sum_elements(), taken.data(), share);
      }
      const std::array<const float*, kMaxGemmInputs> inputs = {bias.data(), uniform.data()};
      for (int share = shares; share-- > 0;) product.finish(packed.data(), sums.data(), c.data(), inputs, share);
    }

    SparseRowProduct product;
    GuardedFloats bias, uniform, packed, sums;
  };

  static void check(const Case& test, std::mt19937& random) {
    SCOPED_TRACE(test);
    constexpr float kScale = -2;
    Bench bench(test, GetParam(), random);
    ASSERT_TRUE(fits_bfp20(bench.view, kScale));
    bench.run(kScale);
    for (int64_t column = 0; column < test.n; ++column) {
      double sum = 0, magnitude = 0, largest = 0, taken = 0;
      for (int64_t row = 0; row < test.k; ++row) {
        const double x = bench.a[static_cast<size_t>(row)], y = double(bench.at(row, column)) * kScale;
        sum += x * y;
        magnitude += std::abs(x * y);
        taken += std::abs(x);
        largest = std::max(largest, std::abs(y));
      }
      const double allowed = taken * largest * kHalfUnit + magnitude * static_cast<double>(test.k + 16) * kRounding;
      double rounding = 0;
      if (test.has_epilogue) {
        sum = std::max(0.0, sum + double(bench.bias[static_cast<size_t>(column)]) + 0.25);
        rounding = 4 * kRounding;
      }
      ASSERT_NEAR(bench.c[static_cast<size_t>(column)], sum, allowed + rounding * (1 + std::abs(sum))) << column;
    }
  }
};

TEST_P(SparseRowTest, MatchesPlainLoopsOverRandomShapes) {
  std::mt19937 random(20261129);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 80; ++round) {
    check({pick(1, 700), pick(1, 150), pick(1, 4), 0.5 * pick(0, 2), pick(0, 1) == 1, pick(0, 1) == 1}, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SparseRowTest, CutsWideRowsAndLongSums) {
  std::mt19937 random(5);
  check({8300, 40, 2, 0.5, false, true}, random);
  check({4100, 21, 3, 0.9, true, false}, random);
  check({70, 5000, 1, 0.1, true, true}, random);
}

TEST_P(SparseRowTest, TakesWhatIsNotFiniteAndNoOtherRow) {
  std::mt19937 random(6);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Bench bench({300, 64, 2, 1, false, false}, GetParam(), random);
  bench.a[10] = std::numeric_limits<float>::quiet_NaN();
  bench.run();
  for (const float each : std::vector<float>(bench.c.data(), bench.c.data() + 300)) ASSERT_TRUE(std::isnan(each));
  // Times what is rounded to 0 it is NaN.
  bench.a[10] = kInfinity;
  bench.run();
  for (const float each : std::vector<float>(bench.c.data(), bench.c.data() + 300)) ASSERT_FALSE(std::isfinite(each));
  bench.a[10] = -0.0F;
  bench.run();
  for (const float each : std::vector<float>(bench.c.data(), bench.c.data() + 300)) ASSERT_EQ(each, 0);
}

TEST_P(SparseRowTest, IsForElementsThatHaveAUnit) {
  std::mt19937 random(7);
  Bench bench({64, 16, 1, 0, true, false}, GetParam(), random);
  EXPECT_TRUE(fits_bfp20(bench.view, 1));
  for (const float other : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const float before = bench.at(7, 9);
    bench.at(7, 9) = other;
    EXPECT_FALSE(fits_bfp20(bench.view, 1));
    bench.at(7, 9) = before;
  }
  EXPECT_FALSE(fits_bfp20(bench.view, 0x1p-100F)) << "units without full precision";
}

INSTANTIATE_TEST_SUITE_P(Isas, SparseRowTest, ::testing::ValuesIn(isas_here()));

}  // namespace
}  // namespace lathe::testing
