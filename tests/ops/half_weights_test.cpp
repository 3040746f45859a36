// Products of few rows whose B lies in 16 bits: its elements are such numbers, so that nothing is rounded.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/gemm/gemm_product.h"
#include "ops/gemm/half_pack.h"
#include "src/base/half.h"
#include "tests/jit/guarded_floats.h"
#include "tests/ops/core_rates.h"

namespace lathe::testing {
namespace {

class HalfWeightsTest : public ::testing::TestWithParam<std::tuple<Isa, WeightFormat>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  WeightFormat format() const { return std::get<1>(GetParam()); }

  // Any number of the format, denormal ones among them.
  float element(std::mt19937& random) const {
    for (;;) {
      const auto bits = static_cast<uint16_t>(random());
      const float value = format() == WeightFormat::f16 ? half_to_float(bits) : bfloat_to_float(bits);
      if (std::abs(value) < 0x1p+16F) return value;
    }
  }

  GemmProblem problem_of(int64_t m, int64_t n, int64_t k, int threads = 1) const {
    GemmProblem problem{1, m, n, k, GemmOperandB::packed, {}, isa(), threads};
    problem.narrow = format();
    return problem;
  }
};

// By one plan, with B as float32 and in 16 bits. Returns where these differ, or -1.
int64_t first_difference(const GemmProblem& problem, const MatrixView& b, float scale, std::mt19937& random) {
  const int64_t gap = std::uniform_int_distribution<int64_t>(0, 20)(random);
  const int64_t a_stride = problem.k + gap, c_stride = problem.n + gap;
  GuardedFloats a(static_cast<size_t>((problem.m - 1) * a_stride + problem.k));
  a.randomize(random, -1, 1);
  GemmPlan plan = default_gemm_plan(problem);
  plan.k_block = problem.k % 128 == 0 ? 64 : 4096;  // the same blocks in both: those of 16 bits begin at even rows
  std::vector<float> results[2];
  for (const bool is_narrow : {false, true}) {
    plan.weights = is_narrow ? problem.narrow : WeightFormat::f32;
    const GemmProduct product(problem, plan);
    GuardedFloats packed(static_cast<size_t>(product.packed_elements()));
    const PanelFormat format = product.format();
    const int64_t panels = format.panels(b.columns);
    is_narrow ? pack_halves(b, format, 0, panels, scale, problem.narrow, packed.data())
              : pack_panels(b, format, 0, panels, scale, packed.data());
    GuardedFloats c(static_cast<size_t>((problem.m - 1) * c_stride + problem.n));
    std::fill(c.data(), c.data() + c.size(), 7.F);
    for (int share = 0; share < problem.threads; ++share) {
      product.run({.a = a.data(), .b = packed.data(), .c = c.data(), .a_stride = a_stride, .c_stride = c_stride}, share,
                  problem.threads);
    }
    results[is_narrow ? 1 : 0].assign(c.data(), c.data() + c.size());
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    if (results[0][i] != results[1][i]) return static_cast<int64_t>(i);
  return -1;
}

TEST_P(HalfWeightsTest, GiveWhatFloat32Gives) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 100; ++round) {
    const int64_t k = pick(0, 3) == 0 ? 128 * pick(1, 3) : pick(1, 300);
    const GemmProblem problem = problem_of(pick(1, 8), pick(1, 300), k, pick(1, 3));
    const bool is_turned = pick(0, 1) == 1;
    GuardedFloats b(static_cast<size_t>(problem.k * problem.n));
    for (size_t i = 0; i < b.size(); ++i) b.data()[i] = element(random);
    MatrixView view{b.data(), problem.k, problem.n, problem.n, 1};
    if (is_turned) view = {b.data(), problem.k, problem.n, 1, problem.k};
    SCOPED_TRACE(problem.key() + (is_turned ? " turned" : ""));
    ASSERT_EQ(default_gemm_plan(problem).weights, format());
    ASSERT_TRUE(fits_halves(view, 1, format()));
    ASSERT_EQ(first_difference(problem, view, 1, random), -1);
  }
}

TEST_P(HalfWeightsTest, FitOnlyWithoutRounding) {
  std::vector<float> b(6 * 4, 0.5F);
  const MatrixView view{b.data(), 6, 4, 4, 1};
  EXPECT_TRUE(fits_halves(view, -2, format()));
  EXPECT_FALSE(fits_halves(view, 0.3F, format()));
  const bool is_f16 = format() == WeightFormat::f16;
  b[23] = 1 + 0x1p-10F;
  EXPECT_EQ(fits_halves(view, 1, format()), is_f16);
  b[23] = 1 + 0x1p-11F;
  EXPECT_FALSE(fits_halves(view, 1, format()));
  b[23] = 0x1p+20F;
  EXPECT_EQ(fits_halves(view, 1, format()), !is_f16) << "beyond its range";
  b[23] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(fits_halves(view, 1, format()));
  b[23] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(fits_halves(view, 1, format()));
}

TEST_P(HalfWeightsTest, AreTheRuleForFewRows) {
  EXPECT_EQ(default_gemm_plan(problem_of(8, 4096, 4096), kZen4).weights, format());
  EXPECT_EQ(default_gemm_plan(problem_of(1, 4096, 4099), kXeon).weights, format());
  EXPECT_EQ(default_gemm_plan(problem_of(9, 4096, 4096), kXeon).weights, WeightFormat::f32);
  GemmProblem other = problem_of(1, 4096, 4096);
  GemmPlan plan = default_gemm_plan(other, kXeon);
  other.narrow = WeightFormat::f32;
  EXPECT_FALSE(is_valid(plan, other)) << "B is not such numbers";
}

INSTANTIATE_TEST_SUITE_P(Isas, HalfWeightsTest,
                         ::testing::Combine(::testing::ValuesIn(usable_isas()),
                                            ::testing::Values(WeightFormat::f16, WeightFormat::bf16)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace lathe::testing
