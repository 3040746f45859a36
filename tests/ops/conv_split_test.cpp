#include <gtest/gtest.h>

#include <set>

#include "ops/conv/conv_program.h"
#include "ops/gemm/strassen.h"
#include "src/base/cpu.h"
#include "tests/conv_axis.h"
#include "tests/ops/core_rates.h"

namespace lathe {
namespace {

TEST(ConvSplit, CutsLargeWeightsForThreadsThatKeepTheirPixels) {
  constexpr double kFlop = 100e6;
  for (const int threads : {2, 3}) {
    ConvSplit split{1, threads};
    split.refine(kFlop, threads, 1 << 20, 16);
    EXPECT_GT(split.count(), threads);
    std::set<std::pair<int, int>> parts;
    const int each = split.count() / threads;
    for (int share = 0; share < split.count(); ++share) {
      EXPECT_EQ(split.pixel_part(share), share / each) << "the first shares that a thread takes are of its pixels";
      EXPECT_LT(split.channel_part(share), split.channels);
      parts.emplace(split.channel_part(share), split.pixel_part(share));
    }
    EXPECT_EQ(parts.size(), static_cast<size_t>(split.count()));
    ConvSplit small{1, threads};
    small.refine(kFlop, threads, 1 << 10, 16);
    EXPECT_EQ(small.channels, 1) << "small weights may be read again for fewer pixels";
    EXPECT_GT(small.pixels, threads);
  }
}

// A pointwise convolution of `pixels` pixels.
ConvProblem pointwise(int64_t in, int64_t out, int64_t pixels) {
  ConvProblem problem;
  problem.in_channels = in;
  problem.out_channels = out;
  problem.phases.resize(1);
  ConvAxis& x = problem.phases[0].x;
  x.in = x.out = x.out_extent = pixels;
  return problem;
}

TEST(ConvPlan, FetchesLargeOutputsAheadWhereFewChannelsAreMultiplied) {
  const auto is_ahead = [](const ConvProblem& problem) {
    return choose_conv_plan(problem, Isa::avx512, 1, kZen4).ahead;
  };
  EXPECT_TRUE(is_ahead(pointwise(16, 96, 160 * 160)));
  EXPECT_TRUE(is_ahead(pointwise(64, 256, 56 * 56)));
  EXPECT_FALSE(is_ahead(pointwise(64, 256, 8 * 8))) << "stays in the cache";
  EXPECT_FALSE(is_ahead(pointwise(16, 96, static_cast<int64_t>(cpu_facts().l2_bytes) / 4 / 96)));
  EXPECT_FALSE(is_ahead(pointwise(1024, 256, 56 * 56))) << "has time to be fetched";
}

TEST(ConvPlan, FetchesAPictureThatIsAddedAheadWhereTwoProductsTakeACycle) {
  const auto is_ahead = [](ConvProblem problem, const CoreRates& rates) {
    problem.epilogue.operands = {ConvOperand::full};
    return choose_conv_plan(problem, Isa::avx512, 1, rates).ahead;
  };
  EXPECT_TRUE(is_ahead(pointwise(512, 1024, 14 * 14), kZen5));
  EXPECT_TRUE(is_ahead(pointwise(1024, 2048, 7 * 7), kZen5));
  EXPECT_FALSE(is_ahead(pointwise(576, 96, 14 * 14), kZen5)) << "stays in the cache";
  EXPECT_FALSE(is_ahead(pointwise(512, 1024, 14 * 14), kZen4));
  EXPECT_FALSE(choose_conv_plan(pointwise(512, 1024, 14 * 14), Isa::avx512, 1, kZen5).ahead);
}

TEST(ConvPlan, HasSmallTilesOfFewStepsWhereTwoProductsTakeACycle) {
  const auto sums = [](const ConvProblem& problem, const CoreRates& rates) {
    const ConvPlan plan = choose_conv_plan(problem, Isa::avx512, 1, rates);
    return plan.blocks * plan.rows * plan.cols;
  };
  EXPECT_EQ(sums(pointwise(16, 96, 112 * 112), kZen5), 12);
  EXPECT_GT(sums(pointwise(512, 128, 28 * 28), kZen5), 24) << "many steps";
  EXPECT_EQ(sums(pointwise(12, 96, 160 * 160), kZen5), 16) << "bound by memory";
  EXPECT_GT(sums(pointwise(32, 16, 112 * 112), kZen5), 24) << "one block of outputs";
  EXPECT_EQ(choose_conv_plan(pointwise(16, 96, 112 * 112), Isa::avx512, 1, kZen4).cols, 8);
}

TEST(ConvPlan, LeavesWeightsOfOneOrTwoPixelsToTheCpusPrefetching) {
  const auto prefetches = [](ConvProblem problem, int64_t batch) {
    problem.batch = batch;
    problem.phases[0].y.in = problem.phases[0].y.out = problem.phases[0].y.out_extent = 1;
    return choose_conv_plan(problem, Isa::avx512, 1, kZen5).prefetch;
  };
  EXPECT_FALSE(prefetches(pointwise(1024, 1000, 1), 1));
  EXPECT_FALSE(prefetches(pointwise(256, 1024, 2), 1));
  EXPECT_TRUE(prefetches(pointwise(256, 1024, 1), 4)) << "an image after the other";
  EXPECT_TRUE(prefetches(pointwise(1024, 1000, 4), 1));
}

TEST(ConvPlan, LetsPixelsShareALastBlockOfFewChannels) {
  const auto pixels_for = [](int64_t channels, const ConvPlan& plan, int64_t blocks, const CoreRates& rates) {
    return shared_pixels(pointwise(96, channels, 100), plan, blocks, rates);
  };
  ConvPlan plan{.isa = Isa::avx512};
  EXPECT_EQ(pixels_for(24, plan, 2, kZen5), 2);
  EXPECT_EQ(pixels_for(40, plan, 3, kZen5), 2);
  EXPECT_EQ(pixels_for(20, plan, 2, kZen5), 4);
  EXPECT_EQ(pixels_for(17, plan, 2, kZen5), 4);
  EXPECT_EQ(pixels_for(32, plan, 2, kZen5), 1) << "no channels missing";
  EXPECT_EQ(pixels_for(25, plan, 2, kZen5), 1) << "more than half";
  EXPECT_EQ(pixels_for(8, plan, 1, kZen5), 1) << "each pixel is read for one product";
  EXPECT_EQ(pixels_for(24, plan, 2, kZen4), 1) << "half a vector takes half the time";
  plan.embedded = true;
  EXPECT_EQ(pixels_for(24, plan, 2, kZen5), 1);
}

TEST(ConvPlan, LargeWindowsHaveShortCode) {
  const auto unrolled = [](int taps, Isa isa) {
    ConvProblem problem = pointwise(64, 64, 56);
    problem.phases[0].x = problem.phases[0].y = testing::axis(56, taps, 0, 0, taps);
    return choose_conv_plan(problem, isa, 1, kZen5).unroll;
  };
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    EXPECT_EQ(unrolled(3, isa), 4);
    EXPECT_LT(unrolled(8, isa), 4);
  }
  EXPECT_EQ(unrolled(8, Isa::avx512), 1);
}

TEST(ConvPlan, SumsAlongTheInputsChannelsForFewOutputs) {
  for (const CoreRates& rates : {kZen4, kZen5}) {
    const auto runs_along_inputs = [&](int64_t in, int64_t out) {
      const ConvPlan plan = choose_conv_plan(pointwise(in, out, 1000), Isa::avx512, 1, rates);
      EXPECT_TRUE(is_valid(plan, pointwise(in, out, 1000)));
      return plan.dots;
    };
    EXPECT_TRUE(runs_along_inputs(64, 1));
    EXPECT_TRUE(runs_along_inputs(64, 4));
    EXPECT_TRUE(runs_along_inputs(24, 1)) << "a tail of channels";
    EXPECT_FALSE(runs_along_inputs(64, 5));
    EXPECT_FALSE(runs_along_inputs(66, 4)) << "fewer channels in the tail than outputs";
  }
}

TEST(ConvPlan, SumsAlongTheInputsChannelsWithinNarrowGroups) {
  const auto runs_along_inputs = [](int64_t in, int64_t out, int64_t groups) {
    ConvProblem problem = pointwise(in, out, 1000);
    problem.groups = groups;
    return choose_conv_plan(problem, Isa::avx512, 1, kZen5).dots;
  };
  EXPECT_TRUE(runs_along_inputs(128, 128, 32));
  EXPECT_TRUE(runs_along_inputs(128, 128, 16));
  EXPECT_FALSE(runs_along_inputs(128, 128, 8)) << "a whole block";
  EXPECT_FALSE(runs_along_inputs(96, 96, 32)) << "groups of three lie across blocks";
  EXPECT_FALSE(runs_along_inputs(128, 256, 32)) << "two outputs for each input";
}

TEST(ConvPlan, MultipliesDirectlyWhereFewStepsVisitALargeOutputAgainAndAgain) {
  const auto by_blocks = [](const ConvProblem& problem) {
    return choose_conv_plan(problem, Isa::avx512, 1, kZen4).strassen;
  };
  const auto pixels = static_cast<int64_t>(cpu_facts().l2_bytes) / 4 / 512;  // as many as L2 holds outputs
  EXPECT_TRUE(by_blocks(pointwise(256, 512, 900)));
  if (pixels > 1000) return;
  EXPECT_TRUE(by_blocks(pointwise(128, 512, pixels - 16)));
  EXPECT_FALSE(by_blocks(pointwise(128, 512, pixels + 16)));
}

TEST(ConvPlan, TakesFewerProductsOfBlocksForFewPixelsOfManyChannels) {
  const auto by_blocks = [](int64_t channels, int64_t pixels, Isa isa) {
    ConvProblem problem = pointwise(channels, channels, pixels);
    problem.lanes = problem.phases[0].lanes = vector_lanes(isa);
    return choose_conv_plan(problem, isa, 2, kZen4).strassen;
  };
  EXPECT_TRUE(by_blocks(480, 240, Isa::avx512));
  EXPECT_FALSE(by_blocks(192, 400, Isa::avx512)) << "sums for few products";
  EXPECT_FALSE(by_blocks(480, 100, Isa::avx512)) << "threads wait for the weights";
  EXPECT_TRUE(by_blocks(512, 100, Isa::avx512));
  EXPECT_FALSE(by_blocks(480, 240, Isa::avx2)) << "lower tiles load the weights more often";
}

TEST(ConvSplit, GivesThreadsPixelsOfTheirOwnThoughOneTileIsOver) {
  const ConvPlan plan{.isa = Isa::avx512, .blocks = 2, .rows = 1, .cols = 6};
  EXPECT_EQ(threads_over_channels(pointwise(64, 64, 1600), plan, 2), 1) << "267 tiles";
  EXPECT_EQ(threads_over_channels(pointwise(64, 64, 18), plan, 2), 2) << "3 tiles, and a small picture";
  EXPECT_EQ(threads_over_channels(pointwise(64, 64, 1600), {.isa = Isa::avx512, .blocks = 2, .cols = 1600}, 2), 2)
      << "one tile";
}

TEST(ConvPlan, TakesTilesOfManyPixelsWhereWeightsLeaveL1) {
  // Two threads share 26 groups of five blocks as evenly as 64 of two, but each tile of two pixels reads 40 KB.
  for (const int threads : {1, 2}) {
    ConvProblem problem = pointwise(256, 1024, 196);
    problem.lanes = 8;
    EXPECT_GE(choose_conv_plan(problem, Isa::avx2, threads, kZen3).cols, 4);
  }
}

TEST(ConvPlan, ReadsLargePicturesSeldomWhereTheyComeSlowly) {
  const auto chosen = [](int64_t in, int64_t out, int64_t pixels, const CoreRates& rates) {
    return choose_conv_plan(pointwise(in, out, pixels), Isa::avx512, 1, rates);
  };
  EXPECT_EQ(chosen(256, 64, 56 * 56, kXeon).blocks, 4);
  EXPECT_FALSE(chosen(64, 256, 56 * 56, kXeon).ahead);
  EXPECT_EQ(chosen(16, 96, 112 * 112, kXeon).blocks, 3);
  EXPECT_TRUE(chosen(12, 96, 160 * 160, kXeon).ahead) << "the output's way to memory binds";
  EXPECT_EQ(chosen(256, 64, 56 * 56, kZen5).blocks, 2);
}

TEST(ConvPlan, SparesTurnsBesideABusyNeighbourWhereThatCostsNothing) {
  const auto chosen = [](int64_t in, int64_t out, int64_t pixels, int threads, const CoreRates& rates) {
    return choose_conv_plan(pointwise(in, out, pixels), Isa::avx512, threads, rates);
  };
  EXPECT_EQ(chosen(256, 64, 28 * 28, 1, kXeon).blocks, 4);
  EXPECT_EQ(chosen(256, 64, 28 * 28, 1, kZen5).blocks, 2);
  EXPECT_EQ(chosen(256, 128, 14 * 14, 1, kXeon).blocks, 4);
  EXPECT_EQ(chosen(256, 64, 7 * 7, 2, kXeon).blocks, 2) << "one group of blocks and 9 tiles: 5 for one thread";
  const ConvPlan long_sums = chosen(768, 128, 14 * 14, 1, kXeon), in_threes = chosen(256, 96, 28 * 28, 1, kXeon);
  EXPECT_TRUE(long_sums.embedded && long_sums.blocks == 2) << "in tiles of four blocks 4 % more";
  EXPECT_TRUE(in_threes.embedded && in_threes.blocks == 2);
  EXPECT_FALSE(chosen(768, 128, 14 * 14, 1, kZen5).embedded);
}

TEST(ConvPlan, KeepsWeightsInL1ForFewTilesWhereTheRestComesSlowly) {
  const auto chosen = [](int64_t in, int64_t out, int64_t pixels, const CoreRates& rates) {
    return choose_conv_plan(pointwise(in, out, pixels), Isa::avx512, 1, rates).chunk;
  };
  EXPECT_EQ(chosen(2048, 512, 49, kXeon), 20) << "40 KB of two blocks of outputs";
  EXPECT_EQ(chosen(512, 2048, 49, kXeon), 0) << "more outputs than steps for each";
  EXPECT_EQ(chosen(2048, 512, 196, kXeon), 0) << "many tiles";
  EXPECT_EQ(chosen(2048, 512, 20, kXeon), chosen(2048, 512, 20, kZen5)) << "two tiles";
  EXPECT_EQ(chosen(2048, 512, 49, kZen5), 0);
}

TEST(ConvPlan, TakesFewerProductsOfBlocksBesideTwoMultipliers) {
  const auto by_blocks = [](int64_t in, int64_t out, int64_t pixels, int threads, const CoreRates& rates) {
    return choose_conv_plan(pointwise(in, out, pixels), Isa::avx512, threads, rates).strassen;
  };
  EXPECT_TRUE(by_blocks(1024, 512, 196, 1, kXeon));
  EXPECT_TRUE(by_blocks(1024, 512, 196, 1, kZen5));
  EXPECT_FALSE(by_blocks(512, 2048, 49, 1, kXeon)) << "an odd row has no packed sums";
  EXPECT_FALSE(by_blocks(512, 128, 784, 1, kXeon)) << "sums of A for few outputs";
  EXPECT_TRUE(by_blocks(256, 1024, 196, 1, kXeon));
  EXPECT_FALSE(by_blocks(256, 1024, 196, 2, kXeon)) << "each thread reads all weights for few pixels";
  EXPECT_TRUE(by_blocks(1024, 512, 196, 2, kXeon));
}

}  // namespace
}  // namespace lathe
