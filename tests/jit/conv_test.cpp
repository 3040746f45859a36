#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "jit/kernels/conv/conv_direct.h"
#include "tests/conv_axis.h"

namespace lathe {
namespace {

ConvShape square(int64_t in, int taps, int64_t stride, int64_t pad, int lanes) {
  ConvShape shape;
  shape.y = shape.x = testing::axis(in, taps, pad, pad, stride);
  shape.lanes = lanes;
  return shape;
}

// x0 * sigmoid(x0) + x1
Expression silu_plus_input() {
  Expression expression{.inputs = {DType::f32, DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = ExprOp::input, .a = 1});
  expression.add({.op = ExprOp::sigmoid, .a = 0});
  expression.add({.op = ExprOp::mul, .a = 0, .b = 2});
  expression.add({.op = ExprOp::add, .a = 3, .b = 1});
  return expression;
}

TEST(ConvTiling, StoresEveryPixelOnce) {
  for (const ConvShape& shape : {square(14, 3, 1, 1, 16), square(15, 7, 2, 3, 1), square(9, 1, 1, 0, 8)}) {
    for (const int rows : {0, 1, 2, 4}) {
      for (const int cols : {1, 4, 7}) {
        const ConvTiling tiling = make_conv_tiling(shape, rows, cols, 16);
        std::multiset<int64_t> stored;
        for (const ConvTile& tile : tiling.tiles) {
          for (int32_t at : tiling.shapes[static_cast<size_t>(tile.shape)].stores) stored.insert(tile.target + at);
        }
        ASSERT_EQ(stored.size(), static_cast<size_t>(shape.y.out * shape.x.out));
        int64_t expected = 0;
        for (int64_t at : stored) EXPECT_EQ(at, 64 * expected++);
      }
    }
  }
}

TEST(ConvTiling, EmitsOnlyTapsInsideTheInput) {
  const ConvShape shape = square(14, 3, 1, 1, 16);
  const ConvTiling tiling = make_conv_tiling(shape, 2, 7, 16);
  for (const ConvTile& tile : tiling.tiles) {
    for (const ConvTapRun& tap : tiling.shapes[static_cast<size_t>(tile.shape)].taps) {
      for (const ConvUse& use : tap.uses) {
        const int64_t at = tile.source + use.source;
        EXPECT_GE(at, 0);
        EXPECT_LT(at, 14 * 14 * 64);
      }
    }
  }
}

TEST(ConvTiling, SharesCodeBetweenInnerTiles) {
  const ConvTiling tiling = make_conv_tiling(square(112, 3, 1, 1, 16), 1, 14, 16);
  EXPECT_EQ(tiling.tiles.size(), 112u * 8u);
  EXPECT_EQ(tiling.shapes.size(), 9u);  // three kinds of rows, three kinds of columns
}

TEST(ConvTiling, ReadsRowsOfPlainPicturesInOneRun) {
  const ConvTiling tiling = make_conv_tiling(square(32, 16, 16, 0, 1), 1, 2, 16);
  ASSERT_EQ(tiling.shapes.size(), 1u);
  ASSERT_EQ(tiling.shapes[0].taps.size(), 16u);
  EXPECT_EQ(tiling.shapes[0].taps[0].run, 16);
}

TEST(ConvKernels, RefuseTilesThatNeedTooManyRegisters) {
  ConvKernelPlan plan;
  plan.blocks = 2;
  plan.lanes = 8;
  EXPECT_TRUE(fits_registers(plan, 6));
  EXPECT_FALSE(fits_registers(plan, 7));
  const ConvTiling tiling = make_conv_tiling(square(14, 1, 1, 0, 8), 1, 7, 8);
  EXPECT_THROW(ConvKernels::make(plan, tiling.shapes), JitError);
  plan.blocks = 1;
  plan.embedded = true;  // there is no such operand without AVX-512
  EXPECT_THROW(ConvKernels::make(plan, tiling.shapes), JitError);
  plan.embedded = false;
  plan.half_last = true;
  EXPECT_THROW(ConvKernels::make(plan, tiling.shapes), JitError);
}

// Two blocks of outputs, of which the second has channels in its first half only.
TEST(ConvKernels, LeaveZerosInTheUnusedHalfOfTheLastBlock) {
  if (!has_avx512(usable_isa())) GTEST_SKIP();
  const ConvTiling tiling = make_conv_tiling(square(4, 1, 1, 0, 16), 1, 4, 16);
  for (const bool embedded : {false, true}) {
    ConvKernelPlan plan;
    plan.isa = Isa::avx512;
    plan.blocks = 2;
    plan.embedded = embedded;
    plan.half_last = true;
    const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);
    alignas(64) float source[16 * 16], weights[16 * 32], target[2][16 * 16];
    for (int i = 0; i < 256; ++i) source[i] = static_cast<float>(i % 11);
    for (int i = 0; i < 512; ++i) weights[i] = static_cast<float>(i % 7) - 3;
    for (const ConvTile& tile : tiling.tiles) {
      ConvCall call;
      call.source = source + tile.source / 4;
      call.target = target[0] + tile.target / 4;
      call.weights = weights;
      call.blocks = 1;
      call.finish = 1;
      call.target_block_bytes = sizeof(target[0]);
      kernels.entry(tile.shape)(&call);
    }
    for (int pixel = 0; pixel < 16; ++pixel) {
      for (int lane = 0; lane < 32; ++lane) {
        float sum = 0;
        for (int i = 0; i < 16 && lane < 24; ++i) sum += source[pixel * 16 + i] * weights[i * 32 + lane];
        EXPECT_EQ(target[lane / 16][pixel * 16 + lane % 16], sum) << "pixel " << pixel << " lane " << lane;
      }
    }
  }
}

TEST(ConvKernels, AddChunksInTheTarget) {
  ConvKernelPlan plan;
  plan.lanes = 8;
  const ConvTiling tiling = make_conv_tiling(square(2, 1, 1, 0, 8), 1, 2, 8);
  const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);
  alignas(64) float source[4 * 8], weights[8 * 8], target[4 * 8];
  for (int i = 0; i < 32; ++i) source[i] = static_cast<float>(i);
  for (int i = 0; i < 64; ++i) weights[i] = static_cast<float>(i % 7);
  for (const int64_t accumulate : {0, 1}) {
    for (const ConvTile& tile : tiling.tiles) {
      ConvCall call;
      call.source = source + tile.source / 4;
      call.target = target + tile.target / 4;
      call.weights = weights;
      call.blocks = 1;
      call.accumulate = accumulate;
      call.finish = accumulate;
      kernels.entry(tile.shape)(&call);
    }
  }
  for (int pixel = 0; pixel < 4; ++pixel) {
    for (int lane = 0; lane < 8; ++lane) {
      float sum = 0;
      for (int i = 0; i < 8; ++i) sum += source[pixel * 8 + i] * weights[i * 8 + lane];
      EXPECT_FLOAT_EQ(target[pixel * 8 + lane], 2 * sum);
    }
  }
}

// Sums of three pixels at a time over two blocks of outputs, with an epilogue that needs more registers than are free.
TEST(ConvKernels, ComputeARunOfTilesLikeOneAfterTheOther) {
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (has_avx512(isa) && !has_avx512(usable_isa())) continue;
    const int lanes = vector_lanes(isa), most = has_avx512(isa) ? 13 : 5;
    const ConvTiling tiling = make_conv_tiling(square(12, 1, 1, 0, lanes), 1, most, lanes);
    ConvKernelPlan plan;
    plan.isa = isa;
    plan.blocks = 2;
    plan.lanes = lanes;
    plan.has_bias = true;
    plan.epilogue.expression = silu_plus_input();
    plan.epilogue.operands = {ConvOperand::full};
    const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);
    const size_t plane = static_cast<size_t>(144 * lanes);
    std::vector<float> source(plane), weights(static_cast<size_t>(2 * lanes * lanes)), bias(32, 0.25F),
        added(2 * plane);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i % 11) - 5;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 7) / 8 - 0.375F;
    for (size_t i = 0; i < added.size(); ++i) added[i] = static_cast<float>(i % 5);
    std::vector<float> alone(2 * plane), together(2 * plane);
    const auto compute = [&](std::vector<float>& target, size_t first, int64_t count) {
      const ConvTile& tile = tiling.tiles[first];
      ConvCall call;
      call.source = source.data() + tile.source / 4;
      call.target = target.data() + tile.target / 4;
      call.operands[0] = added.data() + tile.target / 4;
      call.weights = weights.data();
      call.bias = bias.data();
      call.blocks = 1;
      call.finish = 1;
      call.target_block_bytes = static_cast<int64_t>(plane) * 4;
      call.tiles = count;
      call.source_step_bytes = tile.source_step;
      call.target_step_bytes = tile.target_step;
      kernels.entry(tile.shape)(&call);
    };
    int64_t runs = 0;
    for (size_t i = 0; i < tiling.tiles.size(); ++i) compute(alone, i, 1);
    for (size_t i = 0; i < tiling.tiles.size(); ++runs) {
      compute(together, i, tiling.tiles[i].alike);
      i += static_cast<size_t>(tiling.tiles[i].alike);
    }
    EXPECT_LT(runs, static_cast<int64_t>(tiling.tiles.size())) << name_of(isa);
    EXPECT_EQ(alone, together) << name_of(isa);
    for (size_t i = 0; i < together.size(); ++i) {
      const size_t block = i / plane, pixel = i % plane / static_cast<size_t>(lanes);
      const size_t lane = i % static_cast<size_t>(lanes) + block * static_cast<size_t>(lanes);
      double sum = 0.25;
      for (size_t c = 0; c < static_cast<size_t>(lanes); ++c)
        sum += source[pixel * static_cast<size_t>(lanes) + c] * weights[c * 2 * static_cast<size_t>(lanes) + lane];
      ASSERT_NEAR(together[i], sum / (1 + std::exp(-sum)) + added[i], 1e-4) << name_of(isa) << " at " << i;
    }
  }
}

}  // namespace
}  // namespace lathe
