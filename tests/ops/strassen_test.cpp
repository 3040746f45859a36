#include "ops/gemm/gemm_strassen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"

namespace lathe {
namespace {

using testing::isas_here;

// max(C + bias + residual, 0)
GemmEpilogue bias_residual_relu() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32, DType::f32};
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  int sum = e.add({ExprOp::add, input(0), input(1)});
  sum = e.add({ExprOp::add, sum, input(2)});
  const int zero = e.add({.op = ExprOp::constant, .value = 0});
  e.add({ExprOp::max, sum, zero});
  epilogue.inputs = {GemmInputAccess::columns, GemmInputAccess::columns};
  return epilogue;
}

class StrassenTest : public ::testing::TestWithParam<Isa> {
 protected:
  static GemmProblem in_blocks(int64_t m, int64_t n, int64_t k) {
    GemmProblem problem{1, m, n, k, GemmOperandB::packed, {}, GetParam()};
    problem.allows_strassen = true;
    return problem;
  }
  static GemmPlan plan_by(FastProduct fast, int rows, int vecs = GemmPlan().vecs) {
    GemmPlan plan;
    plan.fast = fast;
    plan.rows = rows;
    plan.vecs = vecs;
    return plan;
  }

  std::vector<float> numbers(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random_);
    return values;
  }

  // The largest error over the largest output, against sums in float64; buffers hold NaN at first.
  double error_of(const GemmProblem& problem, const GemmPlan& plan, int64_t gap, bool are_far) {
    const StrassenProduct product(problem, plan);
    const int64_t m = problem.m, n = problem.n, k = problem.k;
    const float nan = std::nanf("");
    const std::vector<float> a = numbers(m * (k + gap)), b = numbers(k * n), bias = numbers(n),
                             residual = numbers(m * n);
    std::vector<float> packed(static_cast<size_t>(product.packed_elements()), nan);
    product.pack({b.data(), k, n, n, 1}, 1, packed.data());
    std::vector<float> c(static_cast<size_t>(m * (n + gap)), nan);
    std::vector<float> sums(static_cast<size_t>(problem.threads * product.sums_elements()), nan);
    std::vector<float> scratch(static_cast<size_t>(product.scratch_elements()), nan);
    GemmOperands operands;
    operands.a = a.data();
    operands.b = packed.data();
    operands.c = c.data();
    operands.scratch = scratch.data();
    operands.a_stride = k + gap;
    operands.c_stride = n + gap;
    operands.inputs = {bias.data(), residual.data()};
    operands.input_strides = {0, n};
    const int shares = problem.threads * (1 + static_cast<int>(m % 3));
    for (int round = 0; round < product.rounds(); ++round) {
      for (int share = shares; share-- > 0;)
        product.run(round, operands, {sums.data(), product.sums_elements()}, share, shares, share % problem.threads,
                    are_far);
    }
    double error = 0, largest = 0;
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += double(a[static_cast<size_t>(row * (k + gap) + i)]) * double(b[static_cast<size_t>(i * n + column)]);
        if (problem.epilogue) {
          sum += double(bias[static_cast<size_t>(column)]) + double(residual[static_cast<size_t>(row * n + column)]);
          sum = std::max(sum, 0.0);
        }
        const double off = std::abs(sum - double(c[static_cast<size_t>(row * (n + gap) + column)]));
        error = std::isnan(off) ? INFINITY : std::max(error, off);
        largest = std::max(largest, std::abs(sum));
      }
      for (int64_t i = 0; i < gap; ++i)
        EXPECT_TRUE(std::isnan(c[static_cast<size_t>(row * (n + gap) + n + i)])) << "written behind row " << row;
    }
    return error / largest;
  }

  // By two threads.
  static std::vector<float> product_of(const GemmProblem& problem, const GemmPlan& plan, const std::vector<float>& a,
                                       const std::vector<float>& b, bool are_far = false) {
    const StrassenProduct product(problem, plan);
    std::vector<float> packed(static_cast<size_t>(product.packed_elements()));
    product.pack({b.data(), problem.k, problem.n, problem.n, 1}, 1, packed.data());
    std::vector<float> c(static_cast<size_t>(problem.m * problem.n)),
        sums(static_cast<size_t>(problem.threads * product.sums_elements())),
        scratch(static_cast<size_t>(product.scratch_elements()));
    GemmOperands operands;
    operands.a = a.data();
    operands.b = packed.data();
    operands.c = c.data();
    operands.scratch = scratch.data();
    operands.a_stride = problem.k;
    operands.c_stride = problem.n;
    for (int round = 0; round < product.rounds(); ++round) {
      for (int thread = 0; thread < problem.threads; ++thread)
        product.run(round, operands, {sums.data(), product.sums_elements()}, thread, problem.threads, thread, are_far);
    }
    return c;
  }

  std::mt19937 random_{20250103};
};

constexpr std::array kSchemes = {FastProduct::strassen, FastProduct::hopcroft_kerr, FastProduct::packed_strassen};

TEST_P(StrassenTest, MatchesPlainLoopsOverRandomShapes) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); };
  const int lanes = vector_lanes(GetParam());
  for (int round = 0; round < 60; ++round) {
    GemmPlan plan;
    plan.fast = kSchemes[static_cast<size_t>(round) % kSchemes.size()];
    const int parts = scheme_of(plan.fast).columns;  // of n, and of k
    plan.rows = pick(1, 3);
    plan.vecs = pick(1, 3);
    plan.k_unroll = pick(1, 4);
    plan.k_block = pick(1, 3) * parts * lanes;
    plan.row_block = pick(2, 50);
    GemmProblem problem;
    problem.m = pick(2, 40);
    problem.n = int64_t{pick(1, 3)} * parts * plan.vecs * lanes;
    problem.k = int64_t{pick(1, 4)} * parts * lanes;
    problem.isa = GetParam();
    problem.threads = pick(1, 3);
    plan.split = pick(0, 1) == 1 ? GemmSplit::rows : GemmSplit::columns;
    problem.allows_strassen = true;
    if (pick(0, 1) == 1) problem.epilogue = bias_residual_relu();
    SCOPED_TRACE(problem.key() + " " + plan.key());
    ASSERT_TRUE(is_valid(plan, problem));
    EXPECT_LT(error_of(problem, plan, pick(0, 1) * pick(1, 20), pick(0, 1) == 1), 1e-5);
  }
}

TEST_P(StrassenTest, HasSumsOfAWaveOfRowsOnly) {
  const auto product = [](int64_t m, int threads, GemmSplit split) {
    GemmPlan plan = plan_by(FastProduct::packed_strassen, 4, 1);
    plan.row_block = 64;
    plan.split = split;
    GemmProblem problem = in_blocks(m, 128, 128);
    problem.threads = threads;
    return StrassenProduct(problem, plan);
  };
  const int64_t of_wave = product(64, 1, GemmSplit::columns).sums_elements();
  EXPECT_EQ(product(64, 1, GemmSplit::columns).rounds(), 2);
  EXPECT_EQ(product(1024, 1, GemmSplit::columns).sums_elements(), of_wave);
  EXPECT_EQ(product(1024, 1, GemmSplit::columns).rounds(), 2 * 16);
  EXPECT_EQ(product(1024, 2, GemmSplit::rows).sums_elements(), of_wave) << "of each thread";
  EXPECT_EQ(product(1024, 2, GemmSplit::rows).rounds(), 2 * 8);
  EXPECT_EQ(product(3, 2, GemmSplit::rows).rounds(), 2) << "no two rows for each";
}

// Sentences of all lengths share what is packed, and their plans differ.
TEST_P(StrassenTest, PacksTheSameForAllRowsAndSplits) {
  for (const FastProduct fast : kSchemes) {
    GemmPlan plan = plan_by(fast, 4, 1);
    GemmProblem problem = in_blocks(40, 192, 192);
    problem.threads = 2;
    const std::vector<float> b = numbers(problem.k * problem.n);
    const auto packed = [&] {
      const StrassenProduct product(problem, plan);
      std::vector<float> elements(static_cast<size_t>(product.packed_elements()));
      product.pack({b.data(), problem.k, problem.n, problem.n, 1}, 1, elements.data());
      return std::pair(product.packing(), elements);
    };
    const auto first = packed();
    problem.m = 97;
    plan.rows = 6;
    plan.row_block = 16;
    plan.split = GemmSplit::rows;
    EXPECT_EQ(packed(), first) << plan.key();
    plan.k_block = 96;
    EXPECT_NE(packed().first, first.first) << plan.key();
  }
}

TEST_P(StrassenTest, PacksSumsOfBlocksWhereItsNameSaysSo) {
  const auto packed = [](FastProduct fast) {
    GemmPlan plan = plan_by(fast, 4, 1);
    GemmProblem problem = in_blocks(8, 192, 192);
    return StrassenProduct(problem, plan).packed_elements();
  };
  constexpr int64_t kElements = 192 * 192;
  EXPECT_EQ(packed(FastProduct::strassen), kElements);
  EXPECT_EQ(packed(FastProduct::packed_strassen), kElements * 7 / 4);
  EXPECT_EQ(packed(FastProduct::hopcroft_kerr), kElements * 15 / 9);
}

TEST_P(StrassenTest, StaysWithinItsErrorBoundForLongSums) {
  for (const FastProduct fast : kSchemes) {
    GemmPlan plan = plan_by(fast, 6);
    GemmProblem problem = in_blocks(24, 64, 4096);
    if (fast == FastProduct::hopcroft_kerr) problem.n = 96, problem.k = 4032;
    for (const int k_block : {1024, 4096}) {
      plan.k_block = k_block;
      EXPECT_LT(error_of(problem, plan, 0, false), 5e-6) << plan.key();
    }
  }
}

TEST_P(StrassenTest, TakesLongSumsInPartsThatStayNear) {
  for (const FastProduct fast : {FastProduct::strassen, FastProduct::packed_strassen}) {
    GemmPlan plan = plan_by(fast, 6);
    plan.k_block = 1024;
    GemmProblem problem = in_blocks(9, 64, 4096);
    EXPECT_TRUE(StrassenProduct(problem, plan).visits_once());
    problem.k = 11008;
    problem.epilogue = bias_residual_relu();
    EXPECT_FALSE(StrassenProduct(problem, plan).visits_once());
    EXPECT_LT(error_of(problem, plan, 3, false), 1e-5) << plan.key();
  }
}

// Rows of A meet in sums: a small one must not get the large one's errors, nor a row of zeros any, nor anything of an
// infinity.
TEST_P(StrassenTest, KeepsRowsApart) {
  constexpr int64_t kRows = 23, kDepth = 192, kColumns = 192;
  for (const FastProduct fast : kSchemes) {
    GemmPlan plan = plan_by(fast, 4, 1);
    plan.k_block = 96;
    GemmProblem problem = in_blocks(kRows, kColumns, kDepth);
    SCOPED_TRACE(plan.key());
    std::vector<float> a = numbers(kRows * kDepth);
    const std::vector<float> b = numbers(kDepth * kColumns);
    const float sizes[] = {1, 1e-4F, 3e8F, 0, 1e-30F, 1e30F, 1};
    for (int64_t i = 0; i < kRows * kDepth; ++i) a[static_cast<size_t>(i)] *= sizes[i / kDepth % 7];
    constexpr int64_t kInfinite = 6;
    a[kInfinite * kDepth + 5] = INFINITY;
    const std::vector<float> c = product_of(problem, plan, a, b);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < kDepth; ++i) {
          const double term =
              double(a[static_cast<size_t>(row * kDepth + i)]) * double(b[static_cast<size_t>(i * kColumns + column)]);
          sum += term;
          size += std::abs(term);
        }
        const float got = c[static_cast<size_t>(row * kColumns + column)];
        if (row == kInfinite)
          ASSERT_FALSE(std::isfinite(got));
        else
          ASSERT_LE(std::abs(double(got) - sum), 2e-6 * size) << "row " << row << ", column " << column;
      }
    }
  }
}

TEST_P(StrassenTest, IsNotForColumnsOfVeryDifferentSize) {
  std::vector<float> b = numbers(64 * 64);
  EXPECT_TRUE(has_even_columns({b.data(), 64, 64, 64, 1}));
  for (int64_t row = 0; row < 64; ++row) b[static_cast<size_t>(row * 64 + 7)] *= 1e-3F;
  EXPECT_FALSE(has_even_columns({b.data(), 64, 64, 64, 1}));
  EXPECT_TRUE(has_even_columns({b.data(), 64, 64, 1, 64}));  // a row is small then
  for (int64_t i = 0; i < 64; ++i) b[static_cast<size_t>(9 * 64 + i)] = 0;
  EXPECT_FALSE(has_even_columns({b.data(), 64, 64, 1, 64}));
}

TEST_P(StrassenTest, IsRefusedWhereTheAccuracyLevelOrTheExtentsForbidIt) {
  GemmPlan plan = plan_by(FastProduct::strassen, 2);
  GemmProblem problem{1, 8, 64, 64, GemmOperandB::packed, {}, GetParam()};
  EXPECT_FALSE(is_valid(plan, problem));
  problem.allows_strassen = true;
  EXPECT_TRUE(is_valid(plan, problem));
  plan.fast = FastProduct::hopcroft_kerr;  // has no thirds
  EXPECT_FALSE(is_valid(plan, problem));
  plan.fast = FastProduct::strassen;
  problem.n = 63;
  EXPECT_FALSE(is_valid(plan, problem));
  EXPECT_THROW(StrassenProduct(problem, plan), JitError);
  problem.n = 64;
  problem.k = 50;
  EXPECT_FALSE(is_valid(plan, problem));
}

constexpr CoreRates kOneMultiplier = {.wide_products = 1}, kTwoMultipliers = {.wide_products = 2};

TEST_P(StrassenTest, IsTheRuleForLargeProductsOnly) {
  const auto rule = [](const GemmProblem& problem) { return default_gemm_plan(problem, kOneMultiplier).fast; };
  GemmProblem problem{1, 128, 768, 768, GemmOperandB::packed, {}, GetParam()};
  EXPECT_EQ(rule(problem), FastProduct::none);
  problem.allows_strassen = true;
  EXPECT_EQ(rule(problem), FastProduct::hopcroft_kerr);
  problem.n = 1024;  // has no thirds
  EXPECT_EQ(rule(problem), FastProduct::strassen);
  problem.m = 16;
  EXPECT_EQ(rule(problem), FastProduct::none);
  problem = in_blocks(64, 768, 192);
  EXPECT_EQ(rule(problem), FastProduct::hopcroft_kerr);
  problem.k = 96;  // sums of A and visits to C cost more than is saved
  EXPECT_EQ(rule(problem), FastProduct::none);
  // One panel for two threads.
  problem = in_blocks(112, 192, 1536);
  if (GetParam() == Isa::avx512) {
    problem.threads = 2;
    EXPECT_NE(rule(problem), FastProduct::hopcroft_kerr);
  }
}

TEST_P(StrassenTest, FewThreadsHaveRowsOfTheirOwnWhereThereAreMany) {
  const auto split = [](int64_t m, int threads) {
    GemmProblem problem = in_blocks(m, 768, 768);
    problem.threads = threads;
    return default_gemm_plan(problem, kOneMultiplier).split;
  };
  EXPECT_EQ(split(128, 2), GemmSplit::rows);
  EXPECT_EQ(split(128, 1), GemmSplit::columns);
  EXPECT_EQ(split(64, 2), GemmSplit::columns);  // each streams all of B
}

TEST_P(StrassenTest, ThreadsWithManyRowsOfTheirOwnTakeSmallGains) {
  const auto rule = [](int64_t m, int threads) {
    GemmProblem problem = in_blocks(m, 512, 256);
    problem.threads = threads;
    return default_gemm_plan(problem, kOneMultiplier).fast;
  };
  const FastProduct single = rule(256, 1);
  EXPECT_EQ(rule(256, 2), single);
  EXPECT_EQ(rule(196, 2), FastProduct::none);
  EXPECT_EQ(rule(4096, 8), FastProduct::none);  // not by rows
  EXPECT_EQ(single, GetParam() != Isa::avx2 ? FastProduct::strassen : FastProduct::none);
}

// As of Emerald Rapids: half the bytes from memory, and additions in the multipliers' turns.
TEST_P(StrassenTest, CoresThatAddInTheMultipliersTurnsTakeLargerProductsOnly) {
  const auto rule = [](int64_t m, int64_t n, int64_t k, const CoreRates& rates) {
    GemmProblem problem = in_blocks(m, n, k);
    return default_gemm_plan(problem, rates).fast;
  };
  constexpr CoreRates kOneOfTheClients{.adds_beside = false};
  EXPECT_EQ(rule(128, 768, 768, kXeon), FastProduct::hopcroft_kerr);
  if (!has_avx512(GetParam())) {
    EXPECT_EQ(rule(128, 768, 768, kOneOfTheClients), FastProduct::hopcroft_kerr);
    return;
  }
  EXPECT_EQ(rule(128, 768, 768, kOneOfTheClients), FastProduct::none);
  EXPECT_EQ(rule(64, 768, 768, kXeon), FastProduct::none) << "waits for the sums of B";
  EXPECT_EQ(rule(64, 768, 768, kTwoMultipliers), FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(128, 512, 512, kXeon), FastProduct::none);
  EXPECT_EQ(rule(128, 512, 512, kTwoMultipliers), FastProduct::packed_strassen);
  EXPECT_EQ(rule(128, 1024, 1024, kXeon), FastProduct::packed_strassen);
}

TEST_P(StrassenTest, TwoMultipliersTakePackedSumsOnlyAndMoreRows) {
  if (!has_avx512(GetParam())) GTEST_SKIP() << "the rule knows no such core";
  const auto rule = [](int64_t m, int64_t n, int64_t k, int threads = 1) {
    GemmProblem problem = in_blocks(m, n, k);
    problem.threads = threads;
    return default_gemm_plan(problem, kTwoMultipliers);
  };
  EXPECT_EQ(rule(128, 768, 768).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(80, 1024, 1024).fast, FastProduct::packed_strassen) << "has no thirds";
  EXPECT_EQ(rule(79, 1024, 1024).fast, FastProduct::none);
  EXPECT_EQ(rule(128, 256, 1024).fast, FastProduct::packed_strassen) << "columns cost more than steps of k";
  EXPECT_EQ(rule(128, 192, 256).fast, FastProduct::none);
  EXPECT_EQ(rule(128, 512, 512, 2).fast, FastProduct::packed_strassen);
  EXPECT_EQ(rule(79, 1024, 1024, 2).fast, FastProduct::none);
  EXPECT_EQ(rule(48, 768, 768).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(197, 768, 3072).row_block, 256) << "reads B once";
  EXPECT_EQ(rule(1024, 768, 3072, 2).row_block, 136) << "sums of both threads stay in L3";
  EXPECT_EQ(rule(47, 768, 768).fast, FastProduct::none);
  EXPECT_EQ(rule(128, 192, 192).fast, FastProduct::none);
  // Few threads have columns of their own unless these are uneven or rows are many.
  EXPECT_EQ(rule(96, 768, 768, 2).split, GemmSplit::columns);
  EXPECT_EQ(rule(96, 768, 768, 2).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(383, 768, 768, 2).split, GemmSplit::columns);
  EXPECT_EQ(rule(384, 768, 768, 2).split, GemmSplit::rows);
  EXPECT_EQ(rule(96, 576, 768, 2).split, GemmSplit::rows);
  EXPECT_EQ(rule(95, 576, 768, 2).fast, FastProduct::none);
  EXPECT_EQ(rule(128, 768, 192, 2).fast, FastProduct::none) << "sums of few steps, made for columns of two threads";
  EXPECT_EQ(rule(400, 768, 192, 2).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(64, 768, 768, 2).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(63, 768, 768, 2).fast, FastProduct::none);
  EXPECT_EQ(rule(64, 384, 384, 2).fast, FastProduct::none);
  EXPECT_EQ(rule(96, 384, 384, 2).fast, FastProduct::hopcroft_kerr);
  // More threads have columns of their own, few of them or few sums of A.
  EXPECT_EQ(rule(128, 3072, 768, 5).fast, FastProduct::none) << "uneven panels";
  EXPECT_EQ(rule(128, 3072, 768, 8).fast, FastProduct::hopcroft_kerr);
  EXPECT_EQ(rule(128, 768, 768, 8).fast, FastProduct::none);
  EXPECT_EQ(rule(256, 3072, 3072, 8).fast, FastProduct::none);
}

TEST_P(StrassenTest, FewThreadsMakeAllSumsEachForItselfUnlessTheyAreNearAndHaveTwoMultipliers) {
  GemmProblem problem{1, 128, 768, 768, GemmOperandB::packed, {}, GetParam()};
  problem.threads = 2;
  for (const bool are_far : {false, true}) {
    problem.threads = 2;
    EXPECT_TRUE(makes_own_sums(problem, are_far, kOneMultiplier));
    EXPECT_EQ(makes_own_sums(problem, are_far, kTwoMultipliers), are_far || !has_avx512(GetParam()));
    problem.threads = 8;
    EXPECT_FALSE(makes_own_sums(problem, are_far, kOneMultiplier));
  }
}

// Where threads run may change from one run to the next.
TEST_P(StrassenTest, IsTheSameForThreadsThatAreNearAndFar) {
  for (const GemmSplit split : {GemmSplit::columns, GemmSplit::rows}) {
    for (const FastProduct fast : kSchemes) {
      GemmPlan plan = plan_by(fast, 4, 1);
      plan.split = split;
      GemmProblem problem = in_blocks(37, 192, 192);
      problem.threads = 2;
      const std::vector<float> a = numbers(problem.m * problem.k), b = numbers(problem.k * problem.n);
      EXPECT_EQ(product_of(problem, plan, a, b, true), product_of(problem, plan, a, b, false)) << plan.key();
    }
  }
}

TEST_P(StrassenTest, PlansAreReadAsTheyWereWrittenAndAsBeforeThereWereTwoSchemes) {
  for (const FastProduct fast :
       {FastProduct::none, FastProduct::strassen, FastProduct::hopcroft_kerr, FastProduct::packed_strassen}) {
    GemmPlan plan;
    plan.fast = fast;
    EXPECT_EQ(GemmPlan::from_candidate(plan.to_candidate()), plan);
  }
  EXPECT_EQ(GemmPlan::from_candidate({{"strassen", 1}}).fast, FastProduct::strassen);
}

INSTANTIATE_TEST_SUITE_P(Isas, StrassenTest, ::testing::ValuesIn(isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe
