#include "jit/kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include "tests/jit/gemm_tile_bench.h"

namespace lathe::testing {
namespace {

GemmEpilogue bias_residual_gelu(bool long_form) {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32, DType::f32, DType::f32};
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  int x = e.add({ExprOp::add, input(0), input(1)});
  x = e.add({ExprOp::add, x, input(2)});
  x = e.add({ExprOp::mul, x, input(3)});
  if (long_form) {
    const int erf = e.add({ExprOp::erf, e.add({ExprOp::mul, x, constant(0.70710678f)})});
    e.add({ExprOp::mul, e.add({ExprOp::mul, x, constant(0.5f)}), e.add({ExprOp::add, erf, constant(1)})});
  } else {
    e.add({ExprOp::max, x, constant(0)});
  }
  epilogue.inputs = {GemmInputAccess::columns, GemmInputAccess::columns, GemmInputAccess::uniform};
  return epilogue;
}

class GemmTileTest : public ::testing::TestWithParam<Isa> {};

// Random tiles, of which change(tile, pick) makes others; how many of them can be emitted, at most `most`.
template <class Change>
int check_tiles(Isa isa, unsigned seed, int most, Change change) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int tried = 0;
  for (int round = 0; round < 3000 && tried < most; ++round) {
    TileCase test;
    test.plan.isa = isa;
    test.plan.rows = pick(1, 30);
    test.plan.vecs = pick(1, 14);
    test.plan.k_unroll = pick(1, 4);
    test.plan.prefetch_lines = pick(0, 3);
    test.plan.embed_broadcast = pick(0, 3) == 0;
    test.plan.accumulate = pick(0, 1);
    test.plan.masked = pick(0, 1);
    test.plan.b_in_place = pick(0, 1);
    test.plan.weights_to_l2 = test.plan.prefetch_lines == 0 && !test.plan.b_in_place && pick(0, 1);
    test.plan.fetches_ends = pick(0, 1);
    if (pick(0, 2) == 0) test.plan.epilogue = bias_residual_gelu(pick(0, 1));
    test.k = pick(0, 40);
    test.tiles = pick(1, 3);
    test.tail_lanes = test.plan.masked ? pick(1, vector_lanes(isa) - 1) : 0;
    test.gap = pick(0, 1) * pick(1, 20);
    change(test, pick);
    if (!test.plan.is_valid()) continue;
    SCOPED_TRACE(::testing::PrintToString(test));
    TileBench bench(test, random());
    bench.run(gemm_tile(test.plan));
    bench.check();
    if (::testing::Test::HasFatalFailure()) return tried;
    ++tried;
  }
  return tried;
}

TEST_P(GemmTileTest, MatchesPlainLoopsOverRandomShapes) {
  EXPECT_GE(check_tiles(GetParam(), 20240611, 250, [](TileCase&, const auto&) {}), 200);
}

TEST_P(GemmTileTest, AddsUpShortSums) {
  const int tried = check_tiles(GetParam(), 20261129, 250, [](TileCase& test, const auto& pick) {
    test.plan.longest_sum = test.plan.k_unroll * pick(1, 8);
    test.k = pick(0, 120);
    if (pick(0, 3) > 0 || test.plan.vecs < 2) return;
    test.plan.embed_broadcast = test.plan.b_in_place = false;
    pick(0, 1) == 0 ? void(test.plan.half_last = true) : void(test.plan.last_share = 2);
    test.tail_lanes = test.plan.masked ? pick(1, 8) : 0;
  });
  EXPECT_GE(tried, 100);
}

TEST_P(GemmTileTest, LosesFewerDigitsByShortSums) {
  constexpr int kTerms = 1 << 14;
  const std::vector<float> ones(kTerms * static_cast<size_t>(vector_lanes(GetParam())), 0.1F);
  const auto error_at = [&](int longest_sum) {
    GemmTilePlan plan;
    plan.isa = GetParam();
    plan.longest_sum = longest_sum;
    std::vector<float> sum(static_cast<size_t>(vector_lanes(plan.isa)));
    GemmTileArgs args = {};
    args.a = args.b = ones.data();
    args.c = sum.data();
    args.k = kTerms;
    args.tiles = 1;
    gemm_tile(plan).entry()(&args);
    const double term = static_cast<double>(0.1F) * static_cast<double>(0.1F);
    return std::abs(static_cast<double>(sum[0]) - kTerms * term);
  };
  EXPECT_LT(error_at(64), error_at(0) / 4);
}

TEST_P(GemmTileTest, SharesRegistersForFewColumnsOfTheLastVector) {
  if (!has_avx512(GetParam())) GTEST_SKIP();
  const int tried = check_tiles(GetParam(), 20261124, 150, [](TileCase& test, const auto& pick) {
    test.plan.rows = pick(2, 14);
    test.plan.vecs = pick(2, 5);
    test.plan.last_share = pick(0, 1) == 0 ? 2 : 4;
    test.plan.embed_broadcast = test.plan.b_in_place = false;
    test.tail_lanes = test.plan.masked ? pick(1, 16 / test.plan.last_share) : 0;
  });
  EXPECT_GE(tried, 100);
}

TEST_P(GemmTileTest, MultipliesHalfOfTheLastVector) {
  if (!has_avx512(GetParam())) GTEST_SKIP();
  const int tried = check_tiles(GetParam(), 20261126, 150, [](TileCase& test, const auto& pick) {
    test.plan.rows = pick(1, 14);
    test.plan.vecs = pick(1, 6);
    test.plan.half_last = true;
    test.tail_lanes = test.plan.masked ? pick(1, 8) : 0;
  });
  EXPECT_GE(tried, 100);
}

TEST_P(GemmTileTest, SharesNoRegisterThatItDoesNotHold) {
  GemmTilePlan plan;
  plan.isa = GetParam();
  plan.rows = 8;
  plan.vecs = 2;
  plan.last_share = 2;
  EXPECT_EQ(plan.is_valid(), has_avx512(plan.isa));
  plan.embed_broadcast = true;
  EXPECT_FALSE(plan.is_valid());
  plan.embed_broadcast = false;
  plan.b_in_place = true;
  EXPECT_FALSE(plan.is_valid());
  plan.b_in_place = false;
  plan.vecs = 1;
  EXPECT_FALSE(plan.is_valid());
}

TEST_P(GemmTileTest, TakesAsThereAreRowsOfAWithoutAProduct) {
  const int64_t lanes = vector_lanes(GetParam());
  for (const int64_t tail : {int64_t{0}, int64_t{1}, lanes - 3}) {
    GemmTilePlan plan;
    plan.isa = GetParam();
    plan.rows = 3;
    plan.vecs = 2;
    plan.starts_at_a = true;
    plan.masked = tail > 0;
    plan.accumulate = tail != 1;
    const int64_t tiles = 2, rows = 3 * tiles, columns = tail > 0 ? lanes + tail : 2 * lanes;
    const int64_t a_stride = columns + 5, c_stride = columns + 9;
    GuardedFloats a(static_cast<size_t>((rows - 1) * a_stride + columns)),
        c(static_cast<size_t>((rows - 1) * c_stride + columns));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
    for (size_t i = 0; i < c.size(); ++i) c[i] = -1;
    GemmTileArgs args = {};
    args.a = args.b = a.data();
    args.c = c.data();
    args.tiles = tiles;
    args.a_stride_bytes = a_stride * 4;
    args.c_stride_bytes = c_stride * 4;
    args.tail_lanes = tail;
    gemm_tile(plan)(&args);
    for (size_t i = 0; i < c.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / c_stride, column = static_cast<int64_t>(i) % c_stride;
      const float before = column < columns && !plan.accumulate ? 0 : -1;
      const float taken = column < columns ? a[static_cast<size_t>(row * a_stride + column)] : 0;
      ASSERT_EQ(c[i], before + taken) << row << ' ' << column;
    }
  }
}

TEST_P(GemmTileTest, RefusesPlansOverTheRegisterBudget) {
  GemmTilePlan plan;
  plan.isa = GetParam();
  plan.rows = vector_registers(GetParam());
  EXPECT_THROW(gemm_tile(plan), JitError);
  plan.rows = 0;
  EXPECT_THROW(gemm_tile(plan), JitError);
}

TEST_P(GemmTileTest, AdvancesThePrefetchPointerByItsShare) {
  TileCase test;
  test.plan.isa = GetParam();
  test.plan.rows = 4;
  test.plan.vecs = 2;
  test.plan.prefetch_lines = 2;
  std::vector<float> a(4 * 8 * 3), b(8 * 32), c(4 * 32 * 3);
  GemmTileArgs args = {};
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.k = 8;
  args.tiles = 3;
  args.a_stride_bytes = 8 * 4;
  args.c_stride_bytes = 32 * 4;
  args.prefetch = b.data();
  gemm_tile(test.plan)(&args);
  EXPECT_EQ(static_cast<const char*>(args.prefetch) - reinterpret_cast<char*>(b.data()), 3 * 2 * 2 * 64);
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmTileTest, ::testing::ValuesIn(isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe::testing
