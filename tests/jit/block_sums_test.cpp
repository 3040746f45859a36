#include "jit/kernels/gemm/block_sums.h"

#include <gtest/gtest.h>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

BlockSumsPlan random_plan(Isa isa, std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  BlockSumsPlan plan;
  plan.isa = isa;
  plan.rows = pick(1, BlockSumsPlan::kMostRows);
  plan.columns = pick(1, BlockSumsPlan::kMostColumns);
  const int count = pick(1, BlockSumsPlan::kMostSums);
  for (int i = 0; i < count; ++i) {
    const BlockSum nothing(static_cast<size_t>(plan.rows * plan.columns));
    BlockSum sum = nothing;
    while (sum == nothing)
      for (int& sign : sum) sign = pick(-1, 1);
    plan.sums.push_back(sum);
  }
  plan.scaled = pick(0, 1) == 1;
  return plan;
}

// Where an element of a block, or of a sum, lies: vectors of a row side by side, or those of a column.
struct Places {
  int64_t step, row_stride, vector_stride, elements;
  Places(int64_t lanes, int64_t gap, int64_t rows, int64_t vectors, bool in_columns)
      : step(lanes + gap),
        row_stride(in_columns ? step : step * vectors),
        vector_stride(in_columns ? step * rows : step),
        elements((rows * vectors - 1) * step + lanes) {}
};

class BlockSumsTest : public ::testing::TestWithParam<Isa> {};

TEST_P(BlockSumsTest, MatchPlainLoopsOverRandomShapes) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 60; ++round) {
    const BlockSumsPlan plan = random_plan(GetParam(), random);
    const int64_t lanes = vector_lanes(GetParam()), rows = pick(1, 5), vectors = pick(1, 4);
    const Places in(lanes, pick(0, 9), rows, vectors, pick(0, 1) == 1);
    const Places out(lanes, pick(0, 9), rows, vectors, pick(0, 1) == 1);
    const int64_t column_stride = in.elements + pick(0, 9),
                  block_row_stride = plan.columns * column_stride + pick(0, 9);
    const int64_t sum_stride = out.elements + pick(0, 9), sums = static_cast<int64_t>(plan.sums.size());
    SCOPED_TRACE(plan.key());
    GuardedFloats blocks(
        static_cast<size_t>((plan.rows - 1) * block_row_stride + (plan.columns - 1) * column_stride + in.elements));
    const GuardedFloats made(static_cast<size_t>((sums - 1) * sum_stride + out.elements));
    blocks.randomize(random, -1, 1);
    BlockSumsArgs args = {
        blocks.data(), made.data(),          block_row_stride * 4,  column_stride * 4, sum_stride * 4,    rows,
        vectors,       in.vector_stride * 4, out.vector_stride * 4, in.row_stride * 4, out.row_stride * 4};
    // Some rows are taken twice, some not at all, although there may be infinities.
    std::vector<RowScale> scales(static_cast<size_t>(plan.rows * vectors));
    for (RowScale& scale : scales) scale = {2, pick(0, 3) > 0 ? ~uint32_t{0} : 0};
    args.scales = scales.data();
    args.scales_block_row_bytes = vectors * static_cast<int64_t>(sizeof(RowScale));
    const auto scaled = [&](int64_t block_row, int64_t vector, float value) {
      if (!plan.scaled) return double(value);
      const RowScale& scale = scales[static_cast<size_t>(block_row * vectors + vector)];
      return scale.mask == 0 ? 0.0 : 2 * double(value);
    };
    for (int64_t i = 0; plan.scaled && i < plan.rows * vectors; ++i)
      if (scales[static_cast<size_t>(i)].mask == 0)
        blocks[static_cast<size_t>(i / vectors * block_row_stride + i % vectors * in.vector_stride)] = INFINITY;
    block_sums(plan)(&args);
    std::vector<double> expected(made.size(), std::nan(""));
    for (int64_t i = 0; i < sums * rows * vectors * lanes; ++i) {
      const int64_t lane = i % lanes, vector = i / lanes % vectors, row = i / lanes / vectors % rows;
      const int64_t number = i / lanes / vectors / rows;
      double sum = 0;
      for (int64_t block = 0; block < plan.rows * plan.columns; ++block) {
        const int64_t at = block / plan.columns * block_row_stride + block % plan.columns * column_stride +
                           row * in.row_stride + vector * in.vector_stride + lane;
        sum += plan.sums[static_cast<size_t>(number)][static_cast<size_t>(block)] *
               scaled(block / plan.columns, vector, blocks[static_cast<size_t>(at)]);
      }
      expected[static_cast<size_t>(number * sum_stride + row * out.row_stride + vector * out.vector_stride + lane)] =
          sum;
    }
    for (size_t i = 0; i < made.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(made[i])) << "written between vectors, at " << i;
      } else {
        ASSERT_NEAR(made[i], expected[i], 2e-6) << "at " << i;
      }
    }
  }
}

TEST_P(BlockSumsTest, RefusesNoSumAndTooMany) {
  BlockSumsPlan plan;
  plan.isa = GetParam();
  EXPECT_THROW(block_sums(plan), JitError);
  plan.sums.assign(BlockSumsPlan::kMostSums + 1, {1, 0, 0, 0});
  EXPECT_THROW(block_sums(plan), JitError);
  plan.sums = {{0, 0, 0, 0}};
  EXPECT_THROW(block_sums(plan), JitError);
  plan.sums = {{1, 0, 0}};
  EXPECT_THROW(block_sums(plan), JitError);
}

INSTANTIATE_TEST_SUITE_P(Isas, BlockSumsTest, ::testing::ValuesIn(testing::isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe
