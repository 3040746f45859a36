#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "jit/kernels/gemm/gemm.h"
#include "src/base/half.h"
#include "tests/guarded_bytes.h"

namespace lathe {
namespace {

using testing::GuardedBytes;

GemmEpilogue add_bias() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32};
  const int x = e.add({.op = ExprOp::input, .a = 0}), bias = e.add({.op = ExprOp::input, .a = 1});
  e.add({.op = ExprOp::add, .a = x, .b = bias});
  epilogue.inputs = {GemmInputAccess::columns};
  return epilogue;
}

// Operands that end at guard pages, multiplied by the kernel and in float64.
void check(const GemmTilePlan& plan, int64_t pairs, int64_t tiles, int64_t tail, int64_t gap, std::mt19937& random) {
  const int64_t k = 2 * pairs, rows = plan.rows * tiles, width = plan.vecs * 16;
  const int64_t columns = plan.masked ? width - 16 + tail : width, a_stride = k + 2 * gap, c_stride = columns + gap;
  const auto bytes = [](int64_t count, int64_t stride, int64_t last, size_t size) {
    return static_cast<size_t>((count - 1) * stride + last) * size;
  };
  const GuardedBytes a(bytes(rows, a_stride, k, 2)), b(static_cast<size_t>(k * width) * 2),
      c(bytes(rows, c_stride, columns, plan.widens ? 4 : 2)), bias(static_cast<size_t>(columns) * 4);
  const auto fill = [&](const GuardedBytes& to) {
    for (size_t i = 0; i < to.size() / 2; ++i)
      to.as<uint16_t>()[i] = float_to_bfloat(std::uniform_real_distribution<float>(-1, 1)(random));
  };
  fill(a), fill(b);
  if (plan.accumulate) std::fill(c.as<float>(), c.as<float>() + c.size() / 4, 0.5F);
  for (int64_t i = 0; i < columns; ++i) bias.as<float>()[i] = std::uniform_real_distribution<float>(-1, 1)(random);
  GemmTileArgs args = {};
  args.a = a.as<float>();
  args.b = b.as<float>();
  args.c = c.as<float>();
  args.k = pairs;
  args.tiles = tiles;
  args.a_stride_bytes = a_stride * 2;
  args.c_stride_bytes = c_stride * (plan.widens ? 4 : 2);
  args.prefetch = b.data();
  args.tail_lanes = tail;
  args.inputs[0] = bias.as<float>();
  gemm_tile(plan)(&args);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < (row + 1 < rows ? c_stride : columns); ++column) {
      const int64_t at = row * c_stride + column;
      const float got = plan.widens ? c.as<float>()[at] : bfloat_to_float(c.as<uint16_t>()[at]);
      if (column >= columns) {
        const float before = plan.accumulate ? 0.5F
                             : plan.widens   ? std::bit_cast<float>(0xa5a5a5a5U)
                                             : bfloat_to_float(0xa5a5);
        ASSERT_EQ(got, before) << "written between rows " << row << " and " << row + 1;
        continue;
      }
      double sum = plan.epilogue ? static_cast<double>(bias.as<float>()[column]) : 0, magnitude = 1;
      if (plan.accumulate) sum += 0.5;
      for (int64_t i = 0; i < k; ++i) {
        const double product =
            static_cast<double>(bfloat_to_float(a.as<uint16_t>()[row * a_stride + i])) *
            static_cast<double>(bfloat_to_float(b.as<uint16_t>()[(i / 2 * width + column) * 2 + i % 2]));
        sum += product;
        magnitude += std::abs(product);
      }
      // Rounded to 8 bits once, unless C is float32; summed in float32.
      ASSERT_NEAR(got, sum,
                  (plan.widens ? 0 : std::abs(sum) * 0x1p-8) + magnitude * static_cast<double>(k + 1) * 0x1p-23)
          << row << ' ' << column;
    }
  }
}

TEST(GemmBf16Tile, MatchesFloat64OverRandomShapes) {
  if (usable_isa() != Isa::avx512_bf16) GTEST_SKIP() << "the CPU multiplies no bfloat16";
  std::mt19937 random(31);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int tried = 0;
  for (int round = 0; round < 1000 && tried < 120; ++round) {
    GemmTilePlan plan;
    plan.isa = Isa::avx512_bf16;
    plan.bf16 = true;
    plan.rows = pick(1, 14);
    plan.vecs = pick(1, 7);
    plan.k_unroll = pick(1, 4);
    plan.prefetch_lines = pick(0, 2);
    plan.embed_broadcast = pick(0, 3) == 0;
    plan.masked = pick(0, 1) != 0;
    if (pick(0, 1) != 0) plan.epilogue = add_bias();
    plan.widens = pick(0, 1) != 0;
    plan.accumulate = plan.widens && pick(0, 1) != 0;
    if (!plan.is_valid()) continue;
    const int64_t pairs = pick(0, 30), tiles = pick(1, 3), tail = plan.masked ? pick(1, 15) : 0;
    SCOPED_TRACE(plan.key() + " pairs " + std::to_string(pairs) + " tiles " + std::to_string(tiles));
    if (pairs == 0) continue;
    check(plan, pairs, tiles, tail, pick(0, 1) * pick(1, 9), random);
    if (HasFatalFailure()) return;
    ++tried;
  }
  EXPECT_GE(tried, 80);
}

TEST(GemmBf16Tile, IsRefusedWithoutItsInstructionsAndWithWhatItLacks) {
  GemmTilePlan plan;
  plan.bf16 = true;
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_vnni}) {
    plan.isa = isa;
    EXPECT_FALSE(plan.is_valid());
  }
  plan.isa = Isa::avx512_bf16;
  EXPECT_TRUE(plan.is_valid());
  plan.accumulate = true;
  EXPECT_FALSE(plan.is_valid());
  plan.widens = true;
  EXPECT_TRUE(plan.is_valid());
  plan.bf16 = false;
  EXPECT_FALSE(plan.is_valid());
}

}  // namespace
}  // namespace lathe
