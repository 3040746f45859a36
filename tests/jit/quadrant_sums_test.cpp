#include "jit/kernels/quadrant_sums.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

QuadrantSumsPlan random_plan(Isa isa, std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  QuadrantSumsPlan plan;
  plan.isa = isa;
  const int count = pick(1, QuadrantSumsPlan::kMostSums);
  for (int i = 0; i < count; ++i) {
    QuadrantSum sum = {};
    while (sum == QuadrantSum{})
      for (int& sign : sum) sign = pick(-1, 1);
    plan.sums.push_back(sum);
  }
  return plan;
}

class QuadrantSumsTest : public ::testing::TestWithParam<Isa> {};

TEST_P(QuadrantSumsTest, MatchPlainLoopsOverRandomShapes) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 60; ++round) {
    const QuadrantSumsPlan plan = random_plan(GetParam(), random);
    const int64_t lanes = vector_lanes(GetParam()), rows = pick(1, 5), vectors = pick(1, 4);
    // Vectors of a row side by side, or those of a column.
    const bool in_columns = pick(0, 1) == 1, out_columns = pick(0, 1) == 1;
    const int64_t in_step = lanes + pick(0, 9), out_step = lanes + pick(0, 9);
    const int64_t in_stride = in_columns ? in_step : in_step * vectors,
                  in_vector = in_columns ? in_step * rows : in_step;
    const int64_t out_stride = out_columns ? out_step : out_step * vectors;
    const int64_t out_vector = out_columns ? out_step * rows : out_step;
    const int64_t count_of_vectors = rows * vectors - 1;
    SCOPED_TRACE(plan.key());
    std::vector<std::unique_ptr<GuardedFloats>> in, out;
    QuadrantSumsArgs args = {};
    for (size_t q = 0; q < 4; ++q) {
      in.push_back(std::make_unique<GuardedFloats>(count_of_vectors * in_step + lanes));
      in.back()->randomize(random, -1, 1);
      args.in[q] = in.back()->data();
    }
    for (size_t i = 0; i < plan.sums.size(); ++i) {
      out.push_back(std::make_unique<GuardedFloats>(count_of_vectors * out_step + lanes));
      args.out[i] = out.back()->data();
    }
    args.rows = rows;
    args.vectors = vectors;
    args.in_vector_bytes = in_vector * 4;
    args.out_vector_bytes = out_vector * 4;
    args.in_stride_bytes = in_stride * 4;
    args.out_stride_bytes = out_stride * 4;
    quadrant_sums(plan)(&args);
    for (size_t i = 0; i < plan.sums.size(); ++i) {
      for (int64_t at = 0; at < static_cast<int64_t>(out[i]->size()); ++at) {
        const int64_t step = at / out_step, lane = at % out_step;
        const int64_t row = out_columns ? step % rows : step / vectors;
        const int64_t vector = out_columns ? step / rows : step % vectors;
        const float value = (*out[i])[static_cast<size_t>(at)];
        if (lane >= lanes) {
          ASSERT_TRUE(std::isnan(value)) << "written between vectors";
          continue;
        }
        double sum = 0;
        for (size_t q = 0; q < 4; ++q)
          sum += plan.sums[i][q] * double((*in[q])[static_cast<size_t>(row * in_stride + vector * in_vector + lane)]);
        ASSERT_NEAR(value, sum, 4e-7) << "sum " << i << " row " << row << " vector " << vector;
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
