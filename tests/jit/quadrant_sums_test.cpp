#include "jit/kernels/quadrant_sums.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

class QuadrantSumsTest : public ::testing::TestWithParam<Isa> {};

TEST_P(QuadrantSumsTest, MatchPlainLoopsOverRandomShapes) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 60; ++round) {
    QuadrantSumsPlan plan;
    plan.isa = GetParam();
    const int count = pick(1, QuadrantSumsPlan::kMostSums);
    for (int i = 0; i < count; ++i) {
      QuadrantSum sum = {};
      while (sum == QuadrantSum{})
        for (int& sign : sum) sign = pick(-1, 1);
      plan.sums.push_back(sum);
    }
    const int64_t rows = pick(1, 5), columns = int64_t{pick(1, 4)} * vector_lanes(GetParam());
    const int64_t in_stride = columns + pick(0, 9), out_stride = columns + pick(0, 9);
    SCOPED_TRACE(plan.key());
    std::vector<std::unique_ptr<GuardedFloats>> in, out;
    QuadrantSumsArgs args = {};
    for (size_t q = 0; q < 4; ++q) {
      in.push_back(std::make_unique<GuardedFloats>((rows - 1) * in_stride + columns));
      in.back()->randomize(random, -1, 1);
      args.in[q] = in.back()->data();
    }
    for (size_t i = 0; i < plan.sums.size(); ++i) {
      out.push_back(std::make_unique<GuardedFloats>((rows - 1) * out_stride + columns));
      args.out[i] = out.back()->data();
    }
    args.rows = rows;
    args.row_bytes = columns * 4;
    args.in_stride_bytes = in_stride * 4;
    args.out_stride_bytes = out_stride * 4;
    quadrant_sums(plan)(&args);
    for (size_t i = 0; i < plan.sums.size(); ++i) {
      for (int64_t at = 0; at < static_cast<int64_t>(out[i]->size()); ++at) {
        const int64_t row = at / out_stride, column = at % out_stride;
        const float value = (*out[i])[static_cast<size_t>(at)];
        if (column >= columns) {
          ASSERT_TRUE(std::isnan(value)) << "written between rows";
          continue;
        }
        double sum = 0;
        for (size_t q = 0; q < 4; ++q)
          sum += plan.sums[i][q] * double((*in[q])[static_cast<size_t>(row * in_stride + column)]);
        ASSERT_NEAR(value, sum, 4e-7) << "sum " << i << " row " << row << " column " << column;
      }
    }
  }
}

TEST_P(QuadrantSumsTest, RefusesNoSumAndTooMany) {
  QuadrantSumsPlan plan;
  plan.isa = GetParam();
  EXPECT_THROW(quadrant_sums(plan), JitError);
  plan.sums.assign(QuadrantSumsPlan::kMostSums + 1, {1, 0, 0, 0});
  EXPECT_THROW(quadrant_sums(plan), JitError);
  plan.sums = {{0, 0, 0, 0}};
  EXPECT_THROW(quadrant_sums(plan), JitError);
}

INSTANTIATE_TEST_SUITE_P(Isas, QuadrantSumsTest, ::testing::ValuesIn(testing::isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe
