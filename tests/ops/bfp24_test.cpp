// Products of some rows whose B is rounded to block floating point of 24 bits.
#include "jit/kernels/gemm/bfp24.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/gemm/bfp24_pack.h"
#include "ops/gemm/gemm_product.h"
#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/rounded_product.h"

namespace lathe::testing {
namespace {

class Bfp24Test : public ::testing::TestWithParam<Isa> {};

constexpr double kHalfUnit = 0x1p-24;

// Columns of sizes far apart: each has a scale of its own. One is zero.
float element(std::mt19937& random, int64_t column) {
  if (column == 3) return 0;
  return std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(column % 40) - 20);
}

GemmEpilogue doubled() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  const int x = e.add({ExprOp::input, 0});
  e.add({ExprOp::add, x, x});
  return epilogue;
}

GemmProblem problem_of(int64_t m, int64_t n, int64_t k, Isa isa, int threads = 1) {
  GemmProblem problem{1, m, n, k, GemmOperandB::packed, {}, isa, threads};
  problem.narrow = WeightFormat::bfp24;
  return problem;
}

// `plan`: of any tile.
void check(const RoundedCase& test, const GemmProblem& problem, const GemmPlan& plan, std::mt19937& random) {
  RoundedOperands matrices(test, random, element);
  const auto& [stride, c_stride, columns, a, b, c, view, before] = matrices;
  const auto place = [&](int64_t row, int64_t column) { return matrices.place(row, column); };
  constexpr float kScale = -2;
  ASSERT_TRUE(fits_bfp24(view, kScale));
  const GemmProduct product(problem, plan);
  GuardedFloats packed(static_cast<size_t>(product.packed_elements()));
  pack_bfp24(view, product.format(), 0, product.format().panels(test.n), kScale, packed.data());
  GemmOperands operands;
  operands.a = a.data();
  operands.b = packed.data();
  operands.c = matrices.c.data();
  operands.a_stride = stride;
  operands.c_stride = c_stride;
  for (int share = 0; share < test.threads; ++share) product.run(operands, share, test.threads);

  for (int64_t column = 0; column < test.n; ++column) {
    double largest = 0;
    for (int64_t i = 0; i < test.k; ++i) largest = std::max(largest, std::abs(double(b[place(i, column)]) * kScale));
    for (int64_t row = 0; row < test.m; ++row) {
      double sum = 0, magnitude = 0, allowed = 0;
      for (int64_t i = 0; i < test.k; ++i) {
        const double x = a[static_cast<size_t>(row * stride + i)], term = x * double(b[place(i, column)]) * kScale;
        sum += term;
        magnitude += std::abs(term);
        allowed += std::abs(x) * largest * kHalfUnit;
      }
      // And of float32: the integers, the scale, each product and sum.
      allowed += magnitude * static_cast<double>(test.k + 12) * kHalfUnit;
      if (test.has_epilogue) sum *= 2, allowed *= 2;
      ASSERT_NEAR(c[static_cast<size_t>(row * c_stride + column)], sum, allowed) << row << ", " << column;
    }
  }
  matrices.check_gaps();
}

TEST_P(Bfp24Test, IsWithinHalfAUnitOfEachColumnsLargest) {
  std::mt19937 random(20261128);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int checked = 0;
  for (int round = 0; round < 150; ++round) {
    const RoundedCase test{
        pick(1, 40),     pick(1, 150), pick(1, 60) * Bfp24::kGroupRows, pick(0, 1) * pick(1, 20), pick(0, 1) == 1,
        pick(0, 1) == 1, pick(1, 3)};
    GemmProblem problem = problem_of(test.m, test.n, test.k, GetParam(), test.threads);
    if (test.has_epilogue) problem.epilogue = doubled();
    GemmPlan plan = bfp24_plan(problem, {});
    if (pick(0, 1) == 1) plan.rows = pick(1, 16), plan.vecs = pick(1, 8);
    if (pick(0, 2) == 0) plan.split = GemmSplit::rows;
    if (pick(0, 2) == 0) plan.k_block = pick(8, 40);
    plan.embed_broadcast = has_avx512(GetParam()) && pick(0, 2) == 0;
    if (!is_valid(plan, problem)) continue;
    ++checked;
    SCOPED_TRACE(::testing::Message() << problem.key() << " " << plan.key() << " gap " << test.gap << " turned "
                                      << test.is_turned << " threads " << test.threads);
    check(test, problem, plan, random);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(checked, 80);
}

// Rows of A with a single one read the elements as they were rounded: rows of a group lie in different ways.
TEST_P(Bfp24Test, EveryElementIsWithinHalfAUnit) {
  constexpr int64_t kColumns = 33, kDepth = 16;
  const GemmProblem problem = problem_of(kDepth, kColumns, kDepth, GetParam());
  const GemmProduct product(problem, bfp24_plan(problem, {}));
  std::mt19937 random(7);
  std::vector<float> b(kDepth * kColumns), a(kDepth * kDepth), c(kDepth * kColumns),
      packed(static_cast<size_t>(product.packed_elements()));
  std::vector<double> largest(kColumns);
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = element(random, static_cast<int64_t>(i % kColumns));
    largest[i % kColumns] = std::max(largest[i % kColumns], std::abs(double(b[i])));
  }
  for (size_t i = 0; i < kDepth; ++i) a[i * kDepth + i] = 1;
  pack_bfp24({b.data(), kDepth, kColumns, kColumns, 1}, product.format(), 0, product.format().panels(kColumns), 1,
             packed.data());
  product.run({.a = a.data(), .b = packed.data(), .c = c.data(), .a_stride = kDepth, .c_stride = kColumns}, 0, 1);
  for (size_t i = 0; i < b.size(); ++i) {
    const double allowed = largest[i % kColumns] * kHalfUnit + std::abs(double(b[i])) * 3 * kHalfUnit;
    ASSERT_NEAR(c[i], b[i], allowed) << i;
  }
}

TEST_P(Bfp24Test, IsOnlyForWholeGroupsOfRowsWhereItIsAllowed) {
  GemmProblem problem = problem_of(12, 64, 64, GetParam());
  const GemmPlan plan = bfp24_plan(problem, {});
  EXPECT_TRUE(is_valid(plan, problem));
  problem.k = 66;
  EXPECT_FALSE(is_valid(plan, problem));
  problem.k = 64;
  problem.narrow = WeightFormat::f32;
  EXPECT_FALSE(is_valid(plan, problem));
}

INSTANTIATE_TEST_SUITE_P(Isas, Bfp24Test, ::testing::ValuesIn(isas_here()),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

// As measured on a Zen 5: 9 to 12 rows take 0.55 to 0.75 of the time, 16 rows at 2 threads 0.8, 64 as long.
TEST(Bfp24RuleTest, IsForRowsThatWaitForMemory) {
  const auto is_rounded = [](int64_t m, int threads, const CoreRates& rates) {
    const GemmProblem problem = problem_of(m, 3072, 768, Isa::avx512, threads);
    return default_gemm_plan(problem, rates).weights == WeightFormat::bfp24;
  };
  EXPECT_TRUE(is_rounded(12, 1, kZen5));
  EXPECT_FALSE(is_rounded(24, 1, kZen5));
  EXPECT_TRUE(is_rounded(24, 2, kZen5));
  EXPECT_FALSE(is_rounded(48, 2, kZen5));
  EXPECT_FALSE(is_rounded(12, 1, kZen4)) << "one multiplier is busy with the rows";
}

TEST(Bfp24, RefusesWhatItCannotHold) {
  std::vector<float> b(128 * 3, 0.5F);
  const auto fits = [&](float scale) {
    return fits_bfp24({b.data(), 128, 3, 3, 1}, scale) && fits_bfp24({b.data(), 128, 3, 1, 128}, scale);
  };
  EXPECT_TRUE(fits(1));
  EXPECT_FALSE(fits(0x1p-70F));
  EXPECT_FALSE(fits(std::numeric_limits<float>::infinity()));
  b[100] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(fits(1));
  std::fill(b.begin(), b.end(), 0.F);
  EXPECT_TRUE(fits(1));
}

}  // namespace
}  // namespace lathe::testing
