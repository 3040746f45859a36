// Pixels that share the registers of a last output block of few channels.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "jit/kernels/conv/conv_direct.h"

namespace lathe {
namespace {

constexpr int kLanes = 16, kExtent = 5, kPixels = kExtent * kExtent, kWindow = 3;

ConvShape window_on_square() {
  ConvAxis axis;
  axis.in = axis.out = axis.out_extent = kExtent;
  axis.taps = {{0, -1}, {1, 0}, {2, 1}};
  ConvShape shape;
  shape.y = shape.x = axis;
  shape.lanes = kLanes;
  return shape;
}

Expression sum_of_two() {
  Expression expression{.inputs = {DType::f32, DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = ExprOp::input, .a = 1});
  expression.add({.op = ExprOp::add, .a = 0, .b = 1});
  return expression;
}

// blocks, pixels that share, rows and columns of tiles
class ConvSharedBlock : public ::testing::TestWithParam<std::tuple<int, int, std::pair<int, int>>> {};

// Small integers: every order of sums gives the same. What lies behind the channels is NaN and must not be used.
TEST_P(ConvSharedBlock, GivesEachPixelItsChannelsAndZeros) {
  if (!has_avx512(usable_isa())) GTEST_SKIP();
  const auto [blocks, share, tile_size] = GetParam();
  const int width = blocks * kLanes, channels = width - kLanes + kLanes / share;
  ConvKernelPlan plan;
  plan.isa = Isa::avx512;
  plan.blocks = blocks;
  plan.last_share = share;
  plan.has_bias = true;
  plan.epilogue.expression = sum_of_two();
  plan.epilogue.operands = {ConvOperand::full};
  const ConvTiling tiling = make_conv_tiling(window_on_square(), tile_size.first, tile_size.second, kLanes);
  const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> source(kPixels * kLanes), weights(static_cast<size_t>(kWindow * kWindow * kLanes * width)),
      bias(static_cast<size_t>(width)), added(static_cast<size_t>(kPixels * width)), target(added.size(), nan);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i * 7 % 11) - 5;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int lane = static_cast<int>(i) % width;
    weights[i] = lane < channels ? static_cast<float>(i * 5 % 13) - 6 : nan;
  }
  for (int lane = 0; lane < width; ++lane)
    bias[static_cast<size_t>(lane)] = lane < channels ? static_cast<float>(lane) : nan;
  const auto place = [](int lane, int pixel) {
    return static_cast<size_t>((lane / kLanes * kPixels + pixel) * kLanes + lane % kLanes);
  };
  for (int lane = 0; lane < channels; ++lane) {
    for (int pixel = 0; pixel < kPixels; ++pixel) added[place(lane, pixel)] = static_cast<float>(pixel % 4);
  }

  for (const int64_t visit : {0, 1}) {
    for (const ConvTile& tile : tiling.tiles) {
      ConvCall call;
      call.source = source.data() + tile.source / 4;
      call.target = target.data() + tile.target / 4;
      call.operands[0] = added.data() + tile.target / 4;
      call.weights = weights.data();
      call.bias = bias.data();
      call.blocks = 1;
      call.accumulate = call.finish = visit;
      call.target_block_bytes = int64_t{kPixels} * kLanes * 4;
      kernels.entry(tile.shape)(&call);
    }
  }

  for (int lane = 0; lane < width; ++lane) {
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      float sum = 0;
      for (int tap = 0; tap < kWindow * kWindow && lane < channels; ++tap) {
        const int y = pixel / kExtent + tap / kWindow - 1, x = pixel % kExtent + tap % kWindow - 1;
        if (y < 0 || y >= kExtent || x < 0 || x >= kExtent) continue;
        for (int c = 0; c < kLanes; ++c)
          sum += source[static_cast<size_t>((y * kExtent + x) * kLanes + c)] *
                 weights[static_cast<size_t>((tap * kLanes + c) * width + lane)];
      }
      const float expected = lane < channels ? 2 * sum + static_cast<float>(lane + pixel % 4) : 0;
      ASSERT_EQ(target[place(lane, pixel)], expected) << "pixel " << pixel << " lane " << lane;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiles, ConvSharedBlock,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values(2, 4),
                                            ::testing::Values(std::pair(1, 1), std::pair(1, 3), std::pair(1, 5),
                                                              std::pair(2, 3), std::pair(0, 8))));

TEST(ConvSharedBlock, NeedsSeveralBlocksOfWholeVectors) {
  ConvKernelPlan plan;
  plan.isa = Isa::avx512;
  plan.blocks = 2;
  plan.last_share = 2;
  EXPECT_TRUE(fits_registers(plan, 6));
  plan.embedded = true;
  EXPECT_FALSE(fits_registers(plan, 6));
  plan.embedded = false;
  plan.blocks = 1;
  EXPECT_FALSE(fits_registers(plan, 6));
  plan.blocks = 2;
  plan.isa = Isa::avx2;
  EXPECT_FALSE(fits_registers(plan, 6));
}

}  // namespace
}  // namespace lathe
