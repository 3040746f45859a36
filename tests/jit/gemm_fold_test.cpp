// Products that go into one or several matrices, added or subtracted.
#include "jit/kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include "tests/jit/gemm_tile_bench.h"

namespace lathe::testing {
namespace {

class GemmFoldTest : public ::testing::TestWithParam<Isa> {};

// max(x0 + x1 * sigmoid(x2), x3), with registers to spare or not.
GemmEpilogue alike_columns_uniform() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs.assign(4, DType::f32);
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  const int gate = e.add({ExprOp::sigmoid, input(2)});
  const int sum = e.add({ExprOp::add, input(0), e.add({ExprOp::mul, input(1), gate})});
  e.add({ExprOp::max, sum, input(3)});
  epilogue.inputs = {GemmInputAccess::alike, GemmInputAccess::columns, GemmInputAccess::uniform};
  return epilogue;
}

// Some of the matrices or none.
void complete_some(GemmTilePlan& plan, std::mt19937& random) {
  for (size_t i = 0; i < static_cast<size_t>(plan.fold_count()); ++i) {
    plan.completes[i] = plan.folds[i] != GemmFold::take && random() % 3 == 0;
    if (plan.completes[i]) plan.epilogue = alike_columns_uniform();
  }
}

TEST_P(GemmFoldTest, FoldsTheProductIntoOneOrSeveralMatrices) {
  std::mt19937 random(20250102);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 80; ++round) {
    TileCase test;
    test.plan.isa = GetParam();
    test.plan.rows = pick(1, GetParam() == Isa::avx2 ? 4 : 6);
    test.plan.vecs = pick(1, GetParam() == Isa::avx2 ? 2 : 4);
    test.plan.prefetch_lines = pick(0, 1);
    const int count = pick(1, GemmTilePlan::kMostFolds);
    for (int i = 0; i < count; ++i) {
      static constexpr GemmFold kFolds[] = {GemmFold::set, GemmFold::add, GemmFold::subtract};
      test.plan.folds[static_cast<size_t>(i)] = kFolds[pick(0, 2)];
    }
    if (pick(0, 2) == 0) test.plan.folds[0] = GemmFold::take;
    test.plan.apart = pick(0, 1);
    test.plan.b_sign = pick(-1, 1);
    test.plan.fetches_folds = pick(0, 1);
    complete_some(test.plan, random);
    test.k = pick(0, 40);
    if (pick(0, 1) == 1) {
      test.plan.a_in_chunks = true;
      test.plan.k_unroll = vector_lanes(GetParam());
      test.k = int64_t{pick(1, 3)} * vector_lanes(GetParam());
      test.plan.fetch_rows = pick(0, 3);
      test.plan.fetch_matrices = pick(1, 3);
      test.fetch_left = pick(0, 8);
      test.rows_together = pick(0, 1);
    }
    test.tiles = pick(1, 3);
    test.gap = pick(0, 1) * pick(1, 20);
    SCOPED_TRACE(::testing::PrintToString(test));
    TileBench bench(test, random());
    bench.run(gemm_tile(test.plan));
    bench.check();
    bench.check_more();
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmFoldTest, HasAnEpilogueOfFoldsWhereOneCompletesAMatrixOnly) {
  GemmTilePlan plan;
  plan.isa = GetParam();
  plan.folds = {GemmFold::take, GemmFold::add};
  EXPECT_TRUE(plan.is_valid());
  plan.epilogue = alike_columns_uniform();
  EXPECT_FALSE(plan.is_valid());
  plan.completes[1] = true;
  EXPECT_TRUE(plan.is_valid());
  plan.completes[0] = true;
  EXPECT_FALSE(plan.is_valid());
  plan.completes = {false, false, true};
  EXPECT_FALSE(plan.is_valid());
  plan = GemmTilePlan();
  plan.isa = GetParam();
  plan.epilogue = alike_columns_uniform();
  EXPECT_FALSE(plan.is_valid());
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmFoldTest, ::testing::ValuesIn(isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe::testing
