// Convolutions whose sums run along the channels of the input.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "jit/kernels/conv/conv_direct.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

constexpr int kExtent = 5, kPixels = kExtent * kExtent, kWindow = 3;

ConvShape window_on_square(int lanes) {
  ConvAxis axis;
  axis.in = axis.out = axis.out_extent = kExtent;
  axis.taps = {{0, -1}, {1, 0}, {2, 1}};
  ConvShape shape;
  shape.y = shape.x = axis;
  shape.lanes = lanes;
  return shape;
}

Expression doubled() {
  Expression expression{.inputs = {DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = ExprOp::add, .a = 0, .b = 0});
  return expression;
}

// outputs, channels of a last input block (0: whole ones only), rows and columns of tiles
class ConvDots : public ::testing::TestWithParam<std::tuple<int, int, std::pair<int, int>>> {};

// Small integers: every order of sums gives the same. What lies behind the input's last channels is NaN.
TEST_P(ConvDots, GiveEachPixelItsSumsAndZeros) {
  const auto [outputs, tail, tile_size] = GetParam();
  for (const Isa isa : testing::isas_here()) {
    const int lanes = vector_lanes(isa), blocks = tail > 0 ? 3 : 2, channels = 2 * lanes + tail;
    const int tap_floats = lanes * lanes, block_floats = kWindow * kWindow * tap_floats;
    ConvKernelPlan plan;
    plan.isa = isa;
    plan.lanes = lanes;
    plan.tail = tail;
    plan.dots = outputs;
    plan.has_bias = true;
    plan.epilogue.expression = doubled();
    const ConvTiling tiling = make_conv_tiling(window_on_square(lanes), tile_size.first, tile_size.second, lanes);
    if (!fits_registers(plan, tiling.shapes[0].pixels)) continue;
    const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);

    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> source(static_cast<size_t>(blocks * kPixels * lanes), nan),
        weights(static_cast<size_t>(blocks * block_floats)), bias(static_cast<size_t>(lanes)),
        target(static_cast<size_t>(kPixels * lanes), nan);
    const auto input = [&](int channel, int pixel) -> float& {
      return source[static_cast<size_t>((channel / lanes * kPixels + pixel) * lanes + channel % lanes)];
    };
    const auto weight = [&](int output, int channel, int tap) -> float& {
      const int block = channel / lanes, width = block == 2 ? tail : lanes;
      return weights[static_cast<size_t>(block * block_floats + tap * width * lanes + output * lanes +
                                         channel % lanes)];
    };
    for (int channel = 0; channel < channels; ++channel) {
      for (int pixel = 0; pixel < kPixels; ++pixel)
        input(channel, pixel) = static_cast<float>((channel * 5 + pixel * 3) % 11) - 5;
      for (int tap = 0; tap < kWindow * kWindow; ++tap) {
        for (int output = 0; output < outputs; ++output)
          weight(output, channel, tap) = static_cast<float>((channel * 7 + tap * 5 + output * 3) % 13) - 6;
      }
    }
    for (int output = 0; output < outputs; ++output) bias[static_cast<size_t>(output)] = static_cast<float>(1 + output);

    for (const int64_t visit : {0, 1}) {
      for (const ConvTile& tile : tiling.tiles) {
        ConvCall call;
        call.source = source.data() + tile.source / 4;
        call.target = target.data() + tile.target / 4;
        call.weights = weights.data();
        call.bias = bias.data();
        call.blocks = 2;
        call.has_tail = tail > 0;
        call.accumulate = call.finish = visit;
        call.source_block_bytes = int64_t{kPixels} * lanes * 4;
        kernels.entry(tile.shape)(&call);
      }
    }

    for (int lane = 0; lane < lanes; ++lane) {
      for (int pixel = 0; pixel < kPixels; ++pixel) {
        float sum = 0;
        for (int tap = 0; tap < kWindow * kWindow && lane < outputs; ++tap) {
          const int y = pixel / kExtent + tap / kWindow - 1, x = pixel % kExtent + tap % kWindow - 1;
          if (y < 0 || y >= kExtent || x < 0 || x >= kExtent) continue;
          for (int channel = 0; channel < channels; ++channel)
            sum += input(channel, y * kExtent + x) * weight(lane, channel, tap);
        }
        const float expected = lane < outputs ? 2 * (2 * sum + static_cast<float>(1 + lane)) : 0;
        ASSERT_EQ(target[static_cast<size_t>(pixel * lanes + lane)], expected)
            << name_of(isa) << " pixel " << pixel << " lane " << lane;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiles, ConvDots,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(0, 5),
                                            ::testing::Values(std::pair(1, 1), std::pair(1, 2), std::pair(1, 3),
                                                              std::pair(1, 5), std::pair(5, 5))));

// Groups of as many inputs as outputs, over one block of both; the last channels may be missing.
TEST(ConvDots, StayWithinNarrowGroups) {
  for (const Isa isa : testing::isas_here()) {
    const int lanes = vector_lanes(isa);
    for (int each = 2; each < lanes; each *= 2) {
      for (const int tail : {0, each}) {
        const int channels = tail > 0 ? tail : lanes, tap_floats = channels * lanes;
        ConvKernelPlan plan;
        plan.isa = isa;
        plan.lanes = lanes;
        plan.tail = tail;
        plan.dots = each;
        plan.has_narrow_groups = plan.has_bias = true;
        const ConvTiling tiling = make_conv_tiling(window_on_square(lanes), 1,
                                                   each == 8   ? 2
                                                   : each == 4 ? 1
                                                               : 3,
                                                   lanes);
        ASSERT_TRUE(fits_registers(plan, tiling.shapes[0].pixels));
        const ConvKernels kernels = ConvKernels::make(plan, tiling.shapes);
        std::vector<float> source(static_cast<size_t>(kPixels * lanes), std::numeric_limits<float>::quiet_NaN()),
            weights(static_cast<size_t>(kWindow * kWindow * tap_floats)), bias(static_cast<size_t>(lanes)),
            target(static_cast<size_t>(kPixels * lanes), -1.0F);
        const auto weight = [&](int output, int input, int tap) -> float& {
          return weights[static_cast<size_t>(tap * tap_floats + (output ^ input) * lanes + input)];
        };
        const auto first_of = [&](int channel) { return channel / each * each; };
        for (int channel = 0; channel < channels; ++channel) {
          bias[static_cast<size_t>(channel)] = static_cast<float>(channel);
          for (int pixel = 0; pixel < kPixels; ++pixel)
            source[static_cast<size_t>(pixel * lanes + channel)] =
                static_cast<float>((channel * 5 + pixel * 3) % 11) - 5;
          for (int tap = 0; tap < kWindow * kWindow; ++tap) {
            for (int input = first_of(channel); input < first_of(channel) + each; ++input)
              weight(channel, input, tap) = static_cast<float>((channel * 7 + tap * 5 + input * 3) % 13) - 6;
          }
        }
        for (const ConvTile& tile : tiling.tiles) {
          ConvCall call;
          call.source = source.data() + tile.source / 4;
          call.target = target.data() + tile.target / 4;
          call.weights = weights.data();
          call.bias = bias.data();
          call.blocks = tail > 0 ? 0 : 1;
          call.has_tail = tail > 0;
          call.finish = 1;
          kernels.entry(tile.shape)(&call);
        }
        for (int lane = 0; lane < lanes; ++lane) {
          for (int pixel = 0; pixel < kPixels; ++pixel) {
            float sum = bias[static_cast<size_t>(lane)];
            for (int tap = 0; tap < kWindow * kWindow && lane < channels; ++tap) {
              const int y = pixel / kExtent + tap / kWindow - 1, x = pixel % kExtent + tap % kWindow - 1;
              if (y < 0 || y >= kExtent || x < 0 || x >= kExtent) continue;
              for (int input = first_of(lane); input < first_of(lane) + each; ++input)
                sum += source[static_cast<size_t>((y * kExtent + x) * lanes + input)] * weight(lane, input, tap);
            }
            ASSERT_EQ(target[static_cast<size_t>(pixel * lanes + lane)], sum)
                << name_of(isa) << " groups of " << each << " tail " << tail << " pixel " << pixel << " lane " << lane;
          }
        }
      }
    }
  }
}

TEST(ConvDots, AreOfFewOutputsOfWholeVectors) {
  ConvKernelPlan plan;
  plan.isa = Isa::avx2;
  plan.lanes = 8;
  plan.dots = 4;
  EXPECT_TRUE(fits_registers(plan, 2));
  EXPECT_FALSE(fits_registers(plan, 3));
  plan.tail = 5;
  EXPECT_TRUE(fits_registers(plan, 2));
  plan.tail = 3;
  EXPECT_FALSE(fits_registers(plan, 2)) << "weights of four outputs do not lie in those of three channels";
  plan.tail = 0;
  plan.dots = 5;
  EXPECT_FALSE(fits_registers(plan, 1));
  plan.dots = 1;
  plan.lanes = 1;
  EXPECT_FALSE(fits_registers(plan, 1)) << "a plain picture";
}

}  // namespace
}  // namespace lathe
