#include "jit/kernels/conv/conv_spread.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

struct SpreadCase {
  int in_channels = 1, channels = 1;
  int64_t pixels = 16;
  bool has_epilogue = false;
};

// max(x0, x1), a scalar
ConvEpilogue at_least_scalar() {
  ConvEpilogue epilogue;
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  const int x = e.add({ExprOp::input, 0});
  e.add({ExprOp::max, x, e.add({ExprOp::input, 1})});
  epilogue.expression = e;
  epilogue.operands = {ConvOperand::scalar};
  return epilogue;
}

// Two rows of the result in each plane; the pixels of one row in blocks of channels, zeros behind the last channel.
void expect_windows(Isa isa, const SpreadCase& c, std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(isa)) + " " + std::to_string(c.in_channels) + ">" + std::to_string(c.channels) +
               " of " + std::to_string(c.pixels) + (c.has_epilogue ? " with an epilogue" : ""));
  const size_t lanes = static_cast<size_t>(vector_lanes(isa)), in = static_cast<size_t>(c.in_channels),
               channels = static_cast<size_t>(c.channels), pixels = static_cast<size_t>(c.pixels),
               blocks = (in + lanes - 1) / lanes;
  const bool at_border = random() % 2 == 0;
  GuardedFloats source(blocks * pixels * lanes, at_border), weights(in * channels * 4, at_border),
      bias(channels * 4, at_border), target(channels * 4 * pixels, at_border);
  for (GuardedFloats* values : {&source, &weights, &bias}) values->randomize(random, -1, 1);
  const auto at = [&](size_t pixel, size_t c_in) -> float& {
    return source[(c_in / lanes * pixels + pixel) * lanes + c_in % lanes];
  };
  for (size_t pixel = 0; pixel < pixels; ++pixel)
    for (size_t c_in = in; c_in < blocks * lanes; ++c_in) at(pixel, c_in) = 0;
  const float scalar = 0.25F;
  const void* operands[] = {&scalar};
  SpreadPlan plan{isa, c.in_channels, c.channels, {}};
  if (c.has_epilogue) plan.epilogue = at_least_scalar();
  GuardedFloats packed((in + 3) / 4 * 4 * channels * 4, at_border);
  for (size_t i = 0; i < packed.size(); ++i) {
    const int64_t from = packed_weight(plan, static_cast<int64_t>(i));
    packed[i] = from < 0 ? 0 : weights[static_cast<size_t>(from)];
  }
  const auto bytes = [](size_t floats) { return static_cast<int64_t>(floats * sizeof(float)); };
  const SpreadArgs args{source.data(),     packed.data(),     bias.data(), target.data(), bytes(pixels * lanes),
                        bytes(2 * pixels), bytes(4 * pixels), c.pixels,    operands};
  spread_kernel(plan)(&args);
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = 0; i < 4 * pixels; ++i) {
      const size_t pixel = i % (2 * pixels) / 2, place = i / (2 * pixels) * 2 + i % 2;
      double sum = bias[channel * 4 + place];
      for (size_t k = 0; k < in; ++k) sum += at(pixel, k) * weights[(k * channels + channel) * 4 + place];
      if (c.has_epilogue) sum = std::max<double>(sum, scalar);
      ASSERT_NEAR(target[channel * 4 * pixels + i], sum, 1e-7 * static_cast<double>(in + 1))
          << "channel " << channel << " element " << i;
    }
  }
}

TEST(ConvSpread, SumsEachWindowFromItsPixel) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    for (const int in : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 70}) {
      for (int channels = 1; channels <= 4; ++channels) {
        const int tile = SpreadPlan{isa, in, channels, {}}.tile_pixels();
        for (const int64_t more : {0, 1, 3, 8, 21}) {
          expect_windows(isa, {in, channels, tile + more, random() % 2 == 0}, random);
        }
      }
    }
  }
}

TEST(ConvSpread, RefusesOperandsThatAreNoScalars) {
  SpreadPlan plan{Isa::avx2, 8, 1, at_least_scalar()};
  plan.epilogue.operands = {ConvOperand::full};
  EXPECT_THROW(spread_kernel(plan), JitError);
  EXPECT_THROW(spread_kernel({Isa::avx2, 8, 5, {}}), JitError);
}

}  // namespace
}  // namespace lathe
