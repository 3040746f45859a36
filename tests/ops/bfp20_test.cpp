// Products of few rows whose B is rounded to block floating point.
#include "jit/kernels/gemm/bfp20.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/gemm/bfp20_pack.h"
#include "ops/gemm/gemm_product.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/rounded_product.h"

namespace lathe::testing {
namespace {

class Bfp20Test : public ::testing::TestWithParam<Isa> {};

GemmEpilogue bias_and_relu() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32};
  const int sum = e.add({ExprOp::add, e.add({ExprOp::input, 0}), e.add({ExprOp::input, 1})});
  e.add({ExprOp::max, sum, e.add({.op = ExprOp::constant, .value = 0})});
  epilogue.inputs = {GemmInputAccess::columns};
  return epilogue;
}

// Columns of sizes far apart: each has scales of its own.
float element(std::mt19937& random, int64_t column) {
  return std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(column % 40) - 20);
}

// C = A * B * scale, B packed before.
void multiply(const GemmProduct& product, const MatrixView& b, float scale, GemmOperands operands, int threads) {
  GuardedFloats packed(static_cast<size_t>(product.packed_elements()));
  pack_bfp20(b, product.format(), 0, product.format().panels(b.columns), scale, packed.data());
  operands.b = packed.data();
  for (int share = 0; share < threads; ++share) product.run(operands, share, threads);
}

void check(Isa isa, const RoundedCase& test, unsigned seed) {
  std::mt19937 random(seed);
  RoundedOperands matrices(test, random, element);
  const auto& [stride, c_stride, columns, a, b, c, view, before] = matrices;
  const auto place = [&](int64_t row, int64_t column) { return matrices.place(row, column); };
  GuardedFloats bias(static_cast<size_t>(test.n));
  bias.randomize(random, -1, 1);

  GemmProblem problem{1, test.m, test.n, test.k, GemmOperandB::packed, {}, isa, test.threads};
  problem.narrow = WeightFormat::bfp20;
  if (test.has_epilogue) problem.epilogue = bias_and_relu();
  GemmPlan plan = default_gemm_plan(problem, kXeon);
  ASSERT_EQ(plan.weights, WeightFormat::bfp20) << plan.key();
  plan.vecs = std::uniform_int_distribution<int>(1, plan.vecs)(random);
  const GemmProduct product(problem, plan);
  constexpr float kScale = -2;
  ASSERT_TRUE(fits_bfp20(view, kScale));
  multiply(product, view, kScale,
           {.a = a.data(), .c = matrices.c.data(), .a_stride = stride, .c_stride = c_stride, .inputs = {bias.data()}},
           test.threads);

  for (int64_t row = 0; row < test.m; ++row) {
    for (int64_t column = 0; column < test.n; ++column) {
      double sum = 0, allowed = 0, magnitude = 0, largest = 0;
      for (int64_t i = test.k; i-- > 0;) {  // from a block's end
        if ((i + 1) % Bfp20::kBlockRows == 0 || i + 1 == test.k) {
          largest = 0;
          for (int64_t j = i / Bfp20::kBlockRows * Bfp20::kBlockRows; j <= i; ++j)
            largest = std::max(largest, std::abs(double(b[place(j, column)]) * kScale));
        }
        const double x = a[static_cast<size_t>(row * stride + i)], term = x * double(b[place(i, column)]) * kScale;
        sum += term;
        magnitude += std::abs(term);
        allowed += std::abs(x) * largest * (0x1p-20 + 0x1p-23);  // half a unit, and of the scale's own rounding
      }
      allowed += magnitude * static_cast<double>(test.k + 8) * 0x1p-24;
      if (test.has_epilogue) {
        sum = std::max(0.0, sum + double(bias[static_cast<size_t>(column)]));
        allowed += 0x1p-22;
      }
      ASSERT_NEAR(c[static_cast<size_t>(row * c_stride + column)], sum, allowed) << row << ", " << column;
    }
  }
  matrices.check_gaps();
}

TEST_P(Bfp20Test, IsWithinHalfAUnitOfEachBlocksLargest) {
  std::mt19937 random(2026);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 120; ++round) {
    const RoundedCase test{
        pick(1, 8),      pick(1, 150), pick(1, 60) * Bfp20::kGroupRows, pick(0, 1) * pick(1, 20), pick(0, 1) == 1,
        pick(0, 1) == 1, pick(1, 3)};
    SCOPED_TRACE(::testing::Message() << test.m << "x" << test.k << "x" << test.n << " gap " << test.gap << " turned "
                                      << test.is_turned << " threads " << test.threads);
    check(GetParam(), test, static_cast<unsigned>(round));
    if (HasFatalFailure()) return;
  }
}

TEST_P(Bfp20Test, AddsUpSeveralBlocksOfK) { check(GetParam(), RoundedCase{3, 37, 4104, 0, true, true, 1}, 1); }

// Rows of A with a single one read the elements as they were rounded.
TEST_P(Bfp20Test, EveryElementIsWithinHalfAUnit) {
  constexpr int64_t kRows = 8, kColumns = 33, kDepth = Bfp20::kBlockRows;
  GemmProblem problem{1, kRows, kColumns, kDepth, GemmOperandB::packed, {}, GetParam()};
  problem.narrow = WeightFormat::bfp20;
  const GemmProduct product(problem, default_gemm_plan(problem, kXeon));
  std::mt19937 random(7);
  std::vector<float> b(kDepth * kColumns);
  for (float& each : b) each = element(random, &each - b.data());
  std::vector<double> largest(kColumns);
  for (size_t i = 0; i < b.size(); ++i) largest[i % kColumns] = std::max(largest[i % kColumns], std::abs(double(b[i])));
  for (int64_t first = 0; first < kDepth; first += kRows) {
    std::vector<float> a(kRows * kDepth, 0.F), c(kRows * kColumns);
    for (int64_t row = 0; row < kRows; ++row) a[static_cast<size_t>(row * kDepth + first + row)] = 1;
    multiply(product, {b.data(), kDepth, kColumns, kColumns, 1}, 1,
             {.a = a.data(), .c = c.data(), .a_stride = kDepth, .c_stride = kColumns}, 1);
    for (size_t i = 0; i < c.size(); ++i) {
      const double allowed = largest[i % kColumns] * (0x1p-20 + 0x1p-23);
      ASSERT_NEAR(c[i], b[static_cast<size_t>(first * kColumns) + i], allowed) << first << ", " << i;
    }
  }
}

TEST_P(Bfp20Test, ColumnsOfZerosStayZeros) {
  GemmProblem problem{1, 1, 20, 16, GemmOperandB::packed, {}, GetParam()};
  problem.narrow = WeightFormat::bfp20;
  const GemmProduct product(problem, default_gemm_plan(problem, kXeon));
  const std::vector<float> b(16 * 20, 0.F), a(16, 3.F);
  std::vector<float> c(20, 1.F);
  multiply(product, {b.data(), 16, 20, 20, 1}, 1, {.a = a.data(), .c = c.data()}, 1);
  EXPECT_EQ(c, std::vector<float>(20, 0.F));
}

TEST_P(Bfp20Test, IsNeverTheRuleUnlessAllowed) {
  GemmProblem problem{1, 1, 4096, 4096, GemmOperandB::packed, {}, GetParam()};
  EXPECT_EQ(default_gemm_plan(problem, kXeon).weights, WeightFormat::f32);
  GemmPlan plan = default_gemm_plan(problem, kXeon);
  plan.weights = WeightFormat::bfp20;
  EXPECT_FALSE(is_valid(plan, problem));
  problem.narrow = WeightFormat::bfp20;
  EXPECT_EQ(default_gemm_plan(problem, kXeon).weights, WeightFormat::bfp20);
  problem.m = 9;
  EXPECT_EQ(default_gemm_plan(problem, kXeon).weights, WeightFormat::f32);
  problem.m = 1;
  problem.k = 4100;  // ends within a group of rows
  EXPECT_EQ(default_gemm_plan(problem, kXeon).weights, WeightFormat::f32);
  EXPECT_TRUE(is_valid(default_gemm_plan(problem, kXeon), problem));
}

TEST(Bfp20RuleTest, DecodingTakesLessTimeThanMemory) {
  const auto is_rounded = [](Isa isa, int64_t m, int threads, const CoreRates& rates) {
    GemmProblem problem{1, m, 4096, 4096, GemmOperandB::packed, {}, isa, threads};
    problem.narrow = WeightFormat::bfp20;
    return default_gemm_plan(problem, rates).weights == WeightFormat::bfp20;
  };
  EXPECT_TRUE(is_rounded(Isa::avx512, 4, 1, kZen4));
  EXPECT_FALSE(is_rounded(Isa::avx512, 6, 1, kZen4)) << "one multiplier is busy with the rows";
  EXPECT_TRUE(is_rounded(Isa::avx512, 8, 2, kZen4)) << "two threads have one memory";
  EXPECT_TRUE(is_rounded(Isa::avx512, 8, 1, kZen5));
  EXPECT_TRUE(is_rounded(Isa::avx512, 8, 1, kXeon));
  EXPECT_TRUE(is_rounded(Isa::avx2, 1, 1, kZen4));
  EXPECT_FALSE(is_rounded(Isa::avx2, 4, 1, kZen4));
  EXPECT_TRUE(is_rounded(Isa::avx2, 4, 2, kZen4));
  EXPECT_TRUE(is_rounded(Isa::avx2, 8, 2, kZen4));
}

INSTANTIATE_TEST_SUITE_P(Isas, Bfp20Test, ::testing::ValuesIn(isas_here()),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST(Bfp20, RefusesWhatItCannotHold) {
  std::vector<float> b(128 * 3, 0.5F);
  const auto fits = [&](float scale) {
    return fits_bfp20({b.data(), 128, 3, 3, 1}, scale) && fits_bfp20({b.data(), 128, 3, 1, 128}, scale);
  };
  EXPECT_TRUE(fits(1));
  EXPECT_FALSE(fits(0x1p-100F));
  EXPECT_FALSE(fits(std::numeric_limits<float>::infinity()));
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    b[200] = value;
    EXPECT_FALSE(fits(1)) << value;
  }
  b[200] = 0x1p-120F;  // beside larger ones
  EXPECT_TRUE(fits(1));
  std::fill(b.begin(), b.end(), 0x1p-120F);
  EXPECT_FALSE(fits(1));
  std::fill(b.begin(), b.end(), 0.F);
  EXPECT_TRUE(fits(1));
}

}  // namespace
}  // namespace lathe::testing
