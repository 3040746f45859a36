// The rule for tiles of convolutions of integers that finish their outputs beside the next tile's products.
#include <gtest/gtest.h>

#include "ops/conv/conv_int8_program.h"
#include "tests/ops/core_rates.h"

namespace lathe {
namespace {

ConvAxis points(int64_t count) { return {.in = count, .out = count}; }

// A pointwise convolution of a line of pixels, with a residual or without.
ConvInt8Problem pointwise(int64_t channels, int64_t outputs, int64_t pixels, bool has_residual) {
  ConvInt8Problem problem;
  ConvShape shape;
  shape.y = points(1);
  shape.x = points(pixels);
  shape.lanes = 4;
  problem.shape.phases = {shape};
  problem.shape.lanes = 16;
  problem.shape.in_channels = channels / 4;
  problem.shape.out_channels = outputs;
  problem.in_channels = channels;
  problem.dot = Int8Dot::u8s8;
  problem.isa = Isa::avx512_vnni;
  Expression sum;
  sum.inputs = {DType::f32};
  int result = sum.add({ExprOp::input, 0});
  if (has_residual) {
    sum.inputs.push_back(DType::u8);
    result = sum.add({ExprOp::add, result, sum.add({ExprOp::input, 1})});
    problem.epilogue.operands = {ConvOperand::full};
  }
  problem.epilogue.expression = sum;
  problem.store = {DType::u8};
  return problem;
}

bool fits(const ConvInt8Problem& problem, const ConvInt8Tile& tile) {
  ConvInt8Plan plan;
  plan.isa = problem.isa;
  plan.dot = problem.dot;
  plan.blocks = tile.blocks;
  plan.ahead = tile.ahead;
  return fits_registers(plan, tile.rows * tile.cols);
}

TEST(ConvInt8Plan, BlocksShareBroadcastsWhereTwoProductsPassInACycle) {
  for (const bool has_residual : {false, true}) {
    const ConvInt8Problem problem = pointwise(64, 256, 3136, has_residual);
    const std::vector<ConvInt8Tile> one = overlapped_conv_int8_tiles(problem, kZen4);
    ASSERT_EQ(one.size(), 1U);
    EXPECT_EQ(one[0].blocks, 1);
    EXPECT_EQ(one[0].cols, 14);
    const std::vector<ConvInt8Tile> two = overlapped_conv_int8_tiles(problem, kZen5);
    ASSERT_EQ(two.size(), 2U);
    EXPECT_EQ(two[0].blocks, 2);
    EXPECT_EQ(two[0].cols, 7);
    // For epilogues that need more registers.
    EXPECT_EQ(two[1].blocks, 3);
    EXPECT_EQ(two[1].cols, 4);
    for (const ConvInt8Tile& tile : two) {
      EXPECT_EQ(tile.rows, 1);
      EXPECT_EQ(tile.ahead, has_residual ? 4 : 2);  // blocks of 4 groups, of which there are 16
      EXPECT_TRUE(fits(problem, tile));
    }
  }
}

TEST(ConvInt8Plan, OverlappedTilesFitThePictureAndTheChannels) {
  for (const int64_t outputs : {16, 32, 48, 64, 80}) {
    for (const int64_t pixels : {49, 50, 53, 100, 196, 1000}) {
      const ConvInt8Problem problem = pointwise(64, outputs, pixels, false);
      for (const CoreRates& rates : {kZen4, kZen5}) {
        for (const ConvInt8Tile& tile : overlapped_conv_int8_tiles(problem, rates)) {
          EXPECT_LE(tile.blocks * 16, outputs);
          EXPECT_GE(pixels, 7 * tile.cols) << "few tiles hide little";
          EXPECT_TRUE(fits(problem, tile)) << tile.blocks << " blocks, " << tile.cols << " pixels";
        }
      }
    }
  }
}

TEST(ConvInt8Plan, LongSumsHideTheirOutputsOnlyWhereBlocksShareBroadcasts) {
  const ConvInt8Problem deep = pointwise(2048, 512, 196, false);
  EXPECT_TRUE(overlapped_conv_int8_tiles(deep, kZen4).empty());
  EXPECT_FALSE(overlapped_conv_int8_tiles(deep, kZen5).empty());
  EXPECT_TRUE(overlapped_conv_int8_tiles(pointwise(64, 64, 20, false), kZen5).empty());
}

TEST(ConvInt8Plan, BlocksThatShareBroadcastsComeOutEven) {
  const auto tiles = [](int64_t outputs, int64_t channels = 64, bool has_residual = false) {
    return overlapped_conv_int8_tiles(pointwise(channels, outputs, 3136, has_residual), kZen5);
  };
  EXPECT_EQ(tiles(64).back().blocks, 4);
  EXPECT_EQ(tiles(96).back().blocks, 3);
  EXPECT_EQ(tiles(32).back().blocks, 2);
  ASSERT_EQ(tiles(48).size(), 1U) << "two blocks and one";
  EXPECT_EQ(tiles(48)[0].blocks, 3);
  EXPECT_TRUE(tiles(256, 16).empty()) << "hardly anything to hide outputs behind";
  EXPECT_EQ(tiles(256, 1024).size(), 1U) << "long epilogues behind long sums take whole tiles";
  EXPECT_TRUE(tiles(256, 1024, true).empty());
}

TEST(ConvInt8Plan, NothingIsHiddenWhereAdditionsTakeTheMultipliersTurns) {
  for (const bool has_residual : {false, true}) {
    const ConvInt8Problem problem = pointwise(64, 256, 3136, has_residual);
    EXPECT_TRUE(overlapped_conv_int8_tiles(problem, kXeon).empty());
    const ConvInt8Tile tile = choose_conv_int8_tile(problem, kXeon);
    EXPECT_GT(tile.blocks * tile.cols, 14) << "loads little";
    EXPECT_FALSE(tile.ahead);
  }
}

TEST(ConvInt8Plan, SparesTurnsBesideABusyNeighbourWhereThatCostsNothing) {
  EXPECT_EQ(choose_conv_int8_tile(pointwise(256, 64, 784, false), kXeon).blocks, 4);
  EXPECT_EQ(choose_conv_int8_tile(pointwise(256, 64, 784, false), kZen5).blocks, 2);
  EXPECT_EQ(choose_conv_int8_tile(pointwise(1024, 512, 196, false), kXeon).blocks, 2) << "weights come too fast";
}

TEST(ConvInt8Plan, TablesTakeThePlaceOfMultiplicationsWhereOneProductPassesInACycle) {
  for (const int64_t channels : {64, 128, 512}) {
    const ConvInt8Problem problem = pointwise(channels, 256, 3136, true);
    EXPECT_EQ(bytes_beside_products(problem, kZen5), BytesTimesConstants::multiplied) << channels;
    EXPECT_EQ(bytes_beside_products(problem, kZen4),
              channels == 64 ? BytesTimesConstants::inputs_looked_up : BytesTimesConstants::looked_up)
        << channels;
  }
}

}  // namespace
}  // namespace lathe
