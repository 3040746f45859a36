// What Winograd's method is taken for, and in which form and groups: plans, without a kernel.
#include <gtest/gtest.h>

#include "ops/winograd/fewer_products.h"
#include "ops/winograd/winograd_form.h"
#include "tests/conv_axis.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/winograd_problem.h"

namespace lathe {
namespace {

using testing::axis;
using testing::problem_of;

TEST(Winograd, IsOnlyForPlainWindows) {
  const ConvAxis plain = axis(12, 3, 1, 1);
  ConvProblem problem = problem_of(1, 32, 32, 3, plain, plain, Isa::avx2);
  EXPECT_TRUE(is_winograd(problem, 4));
  EXPECT_FALSE(is_winograd(problem, 3));
  problem.groups = 2;
  EXPECT_TRUE(is_winograd(problem, 4));
  problem.groups = 8;
  EXPECT_FALSE(is_winograd(problem, 4)) << "two groups in a block";
  problem.groups = 1;
  problem.phases[0].x = axis(12, 5, 2, 2);
  EXPECT_FALSE(is_winograd(problem, 4));
  problem.phases[0].x = plain;
  problem.phases[0].x.stride = 2;
  EXPECT_FALSE(is_winograd(problem, 4));
  problem.phases[0].y.stride = 2;
  EXPECT_TRUE(is_winograd(problem, 4));
  EXPECT_TRUE(is_winograd(problem, 3));
  EXPECT_FALSE(is_winograd(problem, 6));
  problem.groups = 2;
  EXPECT_FALSE(is_winograd(problem, 4));
  problem.groups = 1;
  problem.in_channels = 33;
  EXPECT_FALSE(is_winograd(problem, 4));
  problem.in_channels = 32;
  problem.phases[0].y = plain;
  problem.phases[0].x = plain;
  for (ConvTap& tap : problem.phases[0].x.taps) tap.offset *= 2;  // dilation
  EXPECT_FALSE(is_winograd(problem, 4));
}

TEST(WinogradStem, IsOnlyForLargeWindowsOfStepsOfTwo) {
  ConvProblem problem = problem_of(1, 3, 32, 7, axis(32, 7, 3, 3, 2), axis(32, 7, 3, 3, 2), Isa::avx2);
  EXPECT_FALSE(is_winograd_stem(problem, 4));  // channels in blocks
  problem.phases[0].lanes = 1;
  EXPECT_TRUE(is_winograd_stem(problem, 4));
  problem.in_channels = 5;
  EXPECT_FALSE(is_winograd_stem(problem, 4));
  problem.in_channels = 3;
  problem.phases[0].y = axis(32, 7, 3, 3);
  EXPECT_FALSE(is_winograd_stem(problem, 4));
  problem.phases[0].y = problem.phases[0].x = axis(32, 3, 1, 1, 2);
  EXPECT_FALSE(is_winograd_stem(problem, 4));
}

TEST(Winograd, IsChosenForLargePicturesAndNotForSmallOnes) {
  const ConvAxis large = axis(56, 3, 1, 1), small = axis(7, 3, 1, 1);
  ConvProblem problem = problem_of(1, 64, 64, 3, large, large, Isa::avx512);
  problem.most_winograd = 4;
  EXPECT_EQ(choose_conv_plan(problem, Isa::avx512, 1).winograd, 4);
  problem.most_winograd = 2;
  EXPECT_EQ(choose_conv_plan(problem, Isa::avx512, 1).winograd, 2);
  problem.most_winograd = 0;
  EXPECT_EQ(choose_conv_plan(problem, Isa::avx512, 1).winograd, 0);
  problem = problem_of(1, 512, 512, 3, small, small, Isa::avx512);
  problem.most_winograd = 4;
  EXPECT_NE(choose_conv_plan(problem, Isa::avx512, 1).winograd, 4);
}

// As measured on a Zen 4 and on a Xeon, by cold weights.
TEST(Winograd, IsChosenByWhatACoreMultipliesWhileItReadsTheWeights) {
  const CoreRates two_and_slow_memory{2, 4.4, 8.8, 12};
  const auto chosen = [](int64_t channels, int64_t pixels, const CoreRates& rates) {
    const ConvAxis both = axis(pixels, 3, 1, 1);
    ConvProblem problem = problem_of(1, channels, channels, 3, both, both, Isa::avx512);
    problem.most_winograd = 4;
    problem.has_exact_weights = true;
    return choose_conv_plan(problem, Isa::avx512, 1, rates).winograd;
  };
  EXPECT_EQ(chosen(64, 56, kZen4), 4);
  EXPECT_EQ(chosen(64, 56, two_and_slow_memory), 4);
  EXPECT_EQ(chosen(256, 14, kZen4), 4);
  EXPECT_EQ(chosen(256, 14, two_and_slow_memory), 2);
  EXPECT_EQ(chosen(512, 7, kZen4), 2);
  EXPECT_EQ(chosen(512, 7, two_and_slow_memory), 0);
}

// As measured on a Zen 5, at the default accuracy level.
TEST(Winograd, IsChosenInLargeFormsWhereTheirWeightsAreNotWaitedFor) {
  const auto chosen = [](int64_t channels, int64_t pixels, Isa isa, int threads = 1) {
    const ConvAxis both = axis(pixels, 3, 1, 1);
    ConvProblem problem = problem_of(1, channels, channels, 3, both, both, isa);
    problem.longest_winograd_sum = ConvProblem().longest_winograd_sum;
    return choose_conv_plan(problem, isa, threads, kZen5).winograd;
  };
  EXPECT_EQ(chosen(64, 112, Isa::avx512), 6) << "11 % less than F(4)";
  EXPECT_EQ(chosen(128, 56, Isa::avx512), 6) << "10 % less";
  EXPECT_EQ(chosen(512, 28, Isa::avx512, 2), 6) << "11 % less";
  EXPECT_EQ(chosen(256, 14, Isa::avx512), 4) << "34 % more";
  EXPECT_EQ(chosen(512, 7, Isa::avx512), 2);
  EXPECT_EQ(chosen(128, 56, Isa::avx2), 6) << "14 % less";
  EXPECT_EQ(chosen(128, 28, Isa::avx2), 6) << "14 % less";
}

TEST(Winograd, TakesGroupsOfWholeBlocksWhereTheyPay) {
  const auto chosen = [](int64_t channels, int64_t groups, int64_t size, int64_t stride = 1) {
    const ConvAxis both = axis(size, 3, 1, 1, stride);
    ConvProblem problem = problem_of(1, channels, channels, 3, both, both, Isa::avx2);
    problem.groups = groups;
    problem.most_winograd = 4;
    return choose_conv_plan(problem, Isa::avx2, 1, kZen3).winograd;
  };
  EXPECT_EQ(chosen(256, 2, 28), 4);
  EXPECT_EQ(chosen(192, 8, 28), 4);
  EXPECT_EQ(chosen(256, 8, 7), 0) << "few tiles for many small products";
  EXPECT_EQ(chosen(160, 8, 56), 0) << "groups that share a block";
  EXPECT_EQ(chosen(256, 2, 56, 2), 0);
}

// As measured on Zen 3: weights of more points come from memory for longer than they spare.
TEST(Winograd, TakesFewerPointsWhereMemoryIsSlow) {
  const auto outputs = [](int64_t channels, int64_t pixels, int64_t stride, const CoreRates& rates) {
    const ConvAxis both = axis(pixels, 3, 1, 1, stride);
    ConvProblem problem = problem_of(1, channels, channels, 3, both, both, Isa::avx2);
    problem.most_winograd = 4;
    return choose_conv_plan(problem, Isa::avx2, 1, rates).winograd;
  };
  EXPECT_EQ(outputs(512, 14, 2, kZen3), 2) << "F(3) takes 1.4 times as long";
  EXPECT_EQ(outputs(512, 14, 2, kZen4), 3);
  EXPECT_EQ(outputs(128, 10, 1, kZen3), 2) << "F(4) takes 1.2 times as long";
  EXPECT_EQ(outputs(256, 14, 1, kZen3), 4);
}

// As measured on a Zen 5.
TEST(Winograd, ReadsTheWeightsOnceForTwoThreadsOfTwoProductsACycle) {
  const auto chosen = [](int64_t in, int64_t out, int64_t pixels, int64_t stride, int threads = 2) {
    const ConvAxis both = axis(pixels * stride, 3, 1, 1, stride);
    ConvProblem problem = problem_of(1, in, out, 3, both, both, Isa::avx512);
    problem.most_winograd = 4;
    problem.has_exact_weights = true;
    return choose_conv_plan(problem, Isa::avx512, threads, {2, 8, 10, 40});
  };
  const ConvPlan smallest = chosen(192, 320, 7, 1);
  EXPECT_EQ(smallest.winograd, 2);
  EXPECT_EQ(smallest.winograd_group, 0) << "31 % less than direct; in two groups 10 % more";
  EXPECT_EQ(chosen(128, 192, 7, 2).winograd, 0) << "F(2x2) takes 11 % more";
  EXPECT_LT(chosen(256, 256, 14, 2).winograd, 4) << "F(2x2) takes 18 % less";
  EXPECT_EQ(chosen(128, 128, 28, 1).winograd, 4);
  EXPECT_EQ(chosen(128, 128, 28, 1, 1).winograd_group, 25) << "not all at once: 1.8 MB of frequencies";
  EXPECT_GE(chosen(128, 128, 28, 2).winograd_group, 25) << "12 % less than in groups of 13";
}

// As measured on a Zen 5; on others they never change the form.
TEST(Winograd, RoundsWeightsThatAreWaitedForTo24Bits) {
  const auto chosen = [](int64_t channels, int64_t pixels, int threads, const CoreRates& rates, int64_t stride = 1) {
    const ConvAxis both = axis(pixels, 3, 1, 1, stride);
    ConvProblem problem = problem_of(1, channels, channels, 3, both, both, Isa::avx512);
    problem.most_winograd = 4;
    return choose_conv_plan(problem, Isa::avx512, threads, rates);
  };
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(chosen(512, 7, threads, kZen5).narrow) << "7 and 20 % less at 1 and 2 threads";
    EXPECT_TRUE(chosen(512, 14, threads, kZen5).narrow) << "11 and 22 % less";
    EXPECT_FALSE(chosen(128, 28, threads, kZen5).narrow) << "2 to 3 % more";
  }
  const ConvPlan larger = chosen(256, 14, 2, kZen5);
  EXPECT_TRUE(larger.narrow);
  EXPECT_EQ(larger.winograd, 4) << "20 % less than F(2)";
  EXPECT_FALSE(chosen(256, 28, 2, kZen5, 2).narrow) << "sums of phases are stored and read again";
  EXPECT_EQ(chosen(256, 14, 1, kXeon).winograd, 2);
}

// As measured on an Emerald Rapids, at one thread.
TEST(Winograd, KeepsLargerGroupsInTheL2OfAXeon) {
  const auto chosen = [](int64_t in, int64_t out, int64_t pixels) {
    const ConvAxis both = axis(pixels, 3, 1, 1);
    ConvProblem problem = problem_of(1, in, out, 3, both, both, Isa::avx512);
    problem.most_winograd = 4;
    return choose_conv_plan(problem, Isa::avx512, 1, kXeon);
  };
  EXPECT_EQ(chosen(256, 256, 56).winograd_group, 0) << "9 % less than in groups of 16, whose weights come from L3";
  EXPECT_EQ(chosen(128, 256, 56).winograd_group, 28) << "22 tiles are no whole tiles of rows";
  EXPECT_EQ(chosen(128, 128, 112).winograd_group, 28) << "6 % less than in groups of 33";
  EXPECT_EQ(chosen(64, 64, 224).winograd_group, 28) << "7 % less than in groups of 56, 26 % less than of 98";
  const ConvPlan small = chosen(256, 256, 14);
  EXPECT_EQ(small.winograd, 2);
  EXPECT_EQ(small.winograd_group, 49) << "all: 7 % less than in groups of 25";
  EXPECT_EQ(chosen(128, 128, 28).winograd_group, 49) << "5 % less than in groups of 25: all stays near";
  EXPECT_EQ(chosen(128, 128, 27).winograd_group, 0) << "tiles that are cut off leave products out";
}

TEST(Winograd, TakesFewerProductsOnlyWhereTheAccuracyLevelAllowsThemAndChannelsHaveHalves) {
  const ConvAxis both = axis(20, 3, 1, 1);
  ConvProblem problem = problem_of(1, 64, 64, 3, both, both, Isa::avx512);
  EXPECT_TRUE(can_multiply_fewer(problem, Isa::avx512, 4));
  problem.most_winograd = 2;
  EXPECT_FALSE(can_multiply_fewer(problem, Isa::avx512, 2));
  problem.most_winograd = 4;
  problem.in_channels = 72;
  EXPECT_FALSE(can_multiply_fewer(problem, Isa::avx512, 4));
  const ConvAxis few = axis(4, 3, 1, 1), step = axis(20, 3, 1, 1, 2);
  EXPECT_FALSE(can_multiply_fewer(problem_of(1, 64, 64, 3, few, few, Isa::avx512), Isa::avx512, 4)) << "one tile";
  EXPECT_FALSE(can_multiply_fewer(problem_of(1, 64, 64, 3, step, step, Isa::avx512), Isa::avx512, 4));
}

ConvPlan chosen(int64_t channels, int64_t pixels, int threads, const CoreRates& rates, Isa isa = Isa::avx512) {
  const ConvAxis both = axis(pixels, 3, 1, 1);
  ConvProblem problem = problem_of(1, channels, channels, 3, both, both, isa);
  problem.most_winograd = 4;
  return choose_conv_plan(problem, isa, threads, rates);
}

// As measured on Zen 4.
TEST(Winograd, TakesFewerProductsOfManyChannels) {
  EXPECT_TRUE(chosen(256, 56, 1, kZen4).strassen) << "7 % less";
  EXPECT_EQ(chosen(256, 56, 1, kZen4).winograd_group, 28) << "5 % more in groups of 16";
  EXPECT_TRUE(chosen(512, 28, 1, kZen4).strassen) << "8 % less";
  EXPECT_FALSE(chosen(192, 40, 1, kZen4).strassen) << "4 % more";
  EXPECT_FALSE(chosen(512, 14, 1, kZen4).strassen) << "few tiles";
  EXPECT_TRUE(chosen(640, 32, 2, kZen4).strassen) << "9 % less";
  EXPECT_FALSE(chosen(256, 56, 2, kZen4).strassen) << "as long";
  EXPECT_FALSE(chosen(512, 28, 3, kZen4).strassen);
  EXPECT_FALSE(chosen(512, 28, 1, kZen5).strassen) << "15 % slower";
  EXPECT_FALSE(chosen(512, 28, 1, kZen4, Isa::avx2).strassen) << "7 % more";
}

// As measured on Emerald Rapids.
TEST(Winograd, TakesFewerProductsOfManyTilesOnXeons) {
  EXPECT_TRUE(chosen(256, 56, 1, kXeon).strassen) << "6 % less";
  EXPECT_TRUE(chosen(512, 40, 1, kXeon).strassen) << "15 % less";
  EXPECT_FALSE(chosen(192, 56, 1, kXeon).strassen) << "as long";
  EXPECT_FALSE(chosen(256, 40, 1, kXeon).strassen) << "8 % more";
  EXPECT_FALSE(chosen(512, 28, 1, kXeon).strassen) << "6 % more";
  EXPECT_FALSE(chosen(1024, 32, 1, kXeon).strassen) << "6 % more";
  EXPECT_FALSE(chosen(256, 56, 2, kXeon).strassen) << "not measured";
  constexpr CoreRates kOneMultiplier{1, 8, 9, 12, false};
  EXPECT_FALSE(chosen(512, 28, 1, kOneMultiplier).strassen) << "additions take the only multiplier's turns";
}

}  // namespace
}  // namespace lathe
