#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lathe/error.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/gemm_tuning.h"
#include "src/base/divide.h"
#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/one_node.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

// Products of numbers in [-1, 1]: the error of float32 sums grows with k.
void expect_near(const Tensor& got, const Tensor& expected, int64_t k) {
  ASSERT_EQ(got.dims(), expected.dims());
  const double tolerance = 1.2e-7 * static_cast<double>(k + 8) * std::sqrt(static_cast<double>(k + 1)) * 4;
  for (int64_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], tolerance) << "element " << i;
  }
}

// x * operand + operand2, then not below -0.5
Epilogue scaled_sum(int operands) {
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs.assign(static_cast<size_t>(operands) + 1, DType::f32);
  int x = e.add({ExprOp::input, 0});
  for (int i = 1; i <= operands; ++i) {
    const int other = e.add({ExprOp::input, i});
    x = e.add({i % 2 == 1 ? ExprOp::mul : ExprOp::add, x, other});
  }
  const int low = e.add({.op = ExprOp::constant, .value = -0.5f});
  e.add({ExprOp::max, x, low});
  epilogue.inputs = operands;
  return epilogue;
}

struct MatMulCase {
  Dims a, b;
  bool constant_a = false, constant_b = false;
  std::vector<Dims> operands;  // of the epilogue
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const MatMulCase& c) {
    out << to_string(c.a) << (c.constant_a ? " constant" : "") << " * " << to_string(c.b)
        << (c.constant_b ? " constant" : "") << " threads " << c.threads;
    for (const Dims& dims : c.operands) out << " operand " << to_string(dims);
    return out;
  }
};

class MatMul : public ::testing::TestWithParam<MatMulCase> {};

TEST_P(MatMul, MatchesItsReferenceOnEachIsa) {
  const MatMulCase& c = GetParam();
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(name_of(isa));
    std::mt19937 random(7);
    OneNode one;
    one.inputs = {random_tensor(c.a, random), random_tensor(c.b, random)};
    one.is_constant = {c.constant_a, c.constant_b};
    for (const Dims& dims : c.operands) {
      one.inputs.push_back(random_tensor(dims, random));
      one.is_constant.push_back(false);
    }
    std::optional<Epilogue> epilogue;
    if (!c.operands.empty()) epilogue = scaled_sum(static_cast<int>(c.operands.size()));
    one.make("MatMul", 13, {}, std::vector<int>(one.inputs.size(), 0), 0, epilogue);
    const std::optional<Tensor> got = one.run(isa, c.threads);
    ASSERT_TRUE(got) << "the reference ran";
    expect_near(*got, one.expected(), c.a.back());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MatMul,
    ::testing::Values(MatMulCase{{128, 64}, {64, 100}, false, true}, MatMulCase{{2, 1500}, {1500, 1501}, false, true},
                      MatMulCase{{1, 33}, {33, 250}, false, true}, MatMulCase{{5, 33}, {33, 250}, false, true},
                      MatMulCase{{49, 70}, {70, 31}}, MatMulCase{{70, 40}, {40, 600}}, MatMulCase{{9}, {9}},
                      MatMulCase{{9}, {9, 20}}, MatMulCase{{9}, {3, 9, 20}}, MatMulCase{{3, 4, 9}, {9}},
                      MatMulCase{{3, 4, 9}, {9}, false, true}, MatMulCase{{2, 3, 17, 9}, {2, 3, 9, 20}},
                      MatMulCase{{2, 1, 17, 9}, {1, 3, 9, 20}}, MatMulCase{{2, 1, 17, 9}, {3, 9, 20}, false, true},
                      MatMulCase{{17, 9}, {3, 9, 20}, true, false}, MatMulCase{{2, 3, 17, 9}, {9, 20}, false, true},
                      MatMulCase{{2, 3, 17, 9}, {9, 20}}, MatMulCase{{4, 0}, {0, 7}},
                      MatMulCase{{4, 0}, {0, 7}, false, true}, MatMulCase{{0, 4}, {4, 7}},
                      MatMulCase{{0, 3, 4}, {4, 7}}, MatMulCase{{3, 4}, {4, 0}},
                      MatMulCase{{100, 2100}, {2100, 70}, false, true},
                      MatMulCase{{20, 1024}, {1024, 70}, false, true}));

INSTANTIATE_TEST_SUITE_P(Epilogues, MatMul,
                         ::testing::Values(MatMulCase{{30, 20}, {20, 50}, false, true, {{50}}},
                                           MatMulCase{{30, 20}, {20, 50}, false, true, {{50}, {30, 50}}},
                                           MatMulCase{{2, 30, 20}, {20, 50}, false, true, {{50}, {2, 30, 50}}},
                                           MatMulCase{{2, 30, 20}, {20, 50}, false, true, {{30, 50}, {2, 1, 50}}},
                                           MatMulCase{{2, 30, 20}, {20, 50}, false, true, {{2, 30, 1}, {}}},
                                           MatMulCase{
                                               {2, 3, 30, 20}, {2, 3, 20, 50}, false, false, {{}, {2, 1, 1, 50}}},
                                           MatMulCase{{3, 4, 20}, {20}, false, true, {{4}, {3, 1}, {1}}},
                                           MatMulCase{{20}, {3, 20, 30}, false, false, {{30}, {3, 1}, {3, 30}}},
                                           MatMulCase{{60, 2100}, {2100, 30}, false, true, {{30}, {60, 30}}},
                                           MatMulCase{{4, 0}, {0, 7}, false, true, {{7}}}));

// Few columns or few rows, known ahead or not.
INSTANTIATE_TEST_SUITE_P(
    Thin, MatMul,
    ::testing::Values(MatMulCase{{300, 70}, {70, 1}, false, true}, MatMulCase{{300, 70}, {70, 1}},
                      MatMulCase{{301, 64}, {64}}, MatMulCase{{3, 50, 200}, {200, 3}, false, true, {{3}}},
                      MatMulCase{{3, 50, 200}, {3, 200, 4}, false, false, {{4}, {3, 50, 1}}},
                      MatMulCase{{3, 50, 200}, {3, 200, 2}, false, true, {{3, 50, 2}, {3, 1, 1}}},
                      MatMulCase{{400, 301}, {301, 7}, false, true, {{7}, {400, 7}, {400, 1}}},
                      MatMulCase{{1, 600}, {600, 10}, false, true, {{10}}},
                      MatMulCase{{1, 1000}, {1000, 1}, false, true, {{1}}}, MatMulCase{{1000}, {1000}},
                      MatMulCase{{5, 1, 300}, {5, 300, 12}, false, true, {{12}, {5, 1, 12}}},
                      MatMulCase{{3000, 128}, {128, 2}, false, true, {{3000, 2}}, 3},
                      MatMulCase{{40, 90, 64}, {40, 64, 1}, false, false, {{40, 90, 1}}, 2},
                      MatMulCase{{2, 3, 33, 64}, {1, 3, 64, 2}, false, false, {{2, 1, 33, 2}}, 2}));

INSTANTIATE_TEST_SUITE_P(Threads, MatMul,
                         ::testing::Values(MatMulCase{{128, 128}, {128, 400}, false, true, {{400}}, 2},
                                           MatMulCase{{3000, 64}, {64, 24}, false, true, {{24}}, 2},
                                           MatMulCase{{12, 128, 64}, {12, 64, 128}, false, false, {}, 2},
                                           MatMulCase{{101, 1100}, {1100, 400}, false, false, {{101, 400}}, 3}));

struct GemmCase {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  float alpha, beta;
  Dims bias;  // {-1}: none
  bool constant_b;
  int version = 13;

  friend std::ostream& operator<<(std::ostream& out, const GemmCase& c) {
    return out << c.m << "x" << c.n << "x" << c.k << (c.transpose_a ? " transA" : "")
               << (c.transpose_b ? " transB" : "") << " alpha " << c.alpha << " beta " << c.beta << " bias "
               << to_string(c.bias) << (c.constant_b ? " constant" : "") << " opset " << c.version;
  }
};

class Gemm : public ::testing::TestWithParam<GemmCase> {};

TEST_P(Gemm, MatchesPlainLoopsOnEachIsa) {
  const GemmCase& c = GetParam();
  std::mt19937 random(8);
  const bool has_bias = c.bias != Dims{-1};
  OneNode one;
  one.inputs = {random_tensor(c.transpose_a ? Dims{c.k, c.m} : Dims{c.m, c.k}, random),
                random_tensor(c.transpose_b ? Dims{c.n, c.k} : Dims{c.k, c.n}, random)};
  one.is_constant = {false, c.constant_b};
  if (has_bias) {
    one.inputs.push_back(random_tensor(c.bias, random));
    one.is_constant.push_back(c.constant_b);
  }
  Attributes attributes;
  attributes.set("alpha", c.alpha);
  attributes.set("beta", c.beta);
  attributes.set("transA", int64_t{c.transpose_a});
  attributes.set("transB", int64_t{c.transpose_b});
  one.make("Gemm", c.version, attributes, std::vector<int>(one.inputs.size(), 0), 0);

  Tensor expected(DType::f32, {c.m, c.n});
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < c.k; ++p) {
        sum += double(one.inputs[0].data<float>()[c.transpose_a ? p * c.m + i : i * c.k + p]) *
               double(one.inputs[1].data<float>()[c.transpose_b ? j * c.k + p : p * c.n + j]);
      }
      sum *= c.alpha;
      if (has_bias) {
        const int64_t columns = c.bias.empty() ? 1 : c.bias.back();
        const int64_t row = c.bias.size() == 2 && c.bias[0] != 1 ? i : 0;
        sum += c.beta * one.inputs[2].data<float>()[row * columns + (columns == 1 ? 0 : j)];
      }
      expected.mutable_data<float>()[i * c.n + j] = static_cast<float>(sum);
    }
  }
  expect_near(one.expected(), expected, c.k);
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(name_of(isa));
    const std::optional<Tensor> got = one.run(isa, 2);
    ASSERT_TRUE(got) << "the reference ran";
    expect_near(*got, expected, c.k);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Gemm,
                         ::testing::Values(GemmCase{7, 40, 33, false, false, 1, 1, {40}, true},
                                           GemmCase{7, 40, 33, false, true, 1, 1, {40}, true},
                                           GemmCase{7, 40, 33, true, false, 0.5f, 2, {7, 40}, true},
                                           GemmCase{17, 41, 33, true, true, 0.5f, 2, {17, 1}, false},
                                           GemmCase{50, 41, 33, false, true, 0.5f, 0.25f, {}, false},
                                           GemmCase{50, 41, 33, false, false, 0.5f, 0.25f, {1, 41}, false},
                                           GemmCase{50, 41, 33, false, true, 2, 1, {-1}, true, 11},
                                           GemmCase{50, 41, 33, false, true, 1, 0, {41}, true, 9},
                                           GemmCase{1, 1000, 512, false, true, 1, 1, {1000}, true, 7},
                                           GemmCase{300, 200, 100, true, true, 1, 1, {200}, false},
                                           GemmCase{3, 5, 0, false, false, 1, 1, {5}, true}));

// --- the product itself, under any plan

struct ProductBench {
  GemmProblem problem;
  GemmPlan plan;
  Tensor a, b, bias, c;
};

// The plan's result against plain loops.
void check_product(const GemmProblem& problem, const GemmPlan& plan, std::mt19937& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  // The products of a batch share one B, or have their own.
  const bool shares_b = pick(0, 1) == 1;
  const int64_t b_count = shares_b ? 1 : problem.batches;
  const int64_t vec = vector_lanes(problem.isa), b_size = problem.k * divide_up(problem.n, vec) * vec;
  std::vector<GemmOffsets> offsets;
  for (int64_t i = 0; i < problem.batches; ++i)
    offsets.push_back({i * problem.m * problem.k, shares_b ? 0 : i * b_size, i * problem.m * problem.n, {}});
  const GemmProduct product(problem, plan, offsets);
  const Tensor a = random_tensor({problem.batches * problem.m, problem.k}, random);
  const Tensor b = random_tensor({b_count, problem.k, problem.n}, random);
  const Tensor before = random_tensor({problem.batches * problem.m, problem.n}, random);
  Tensor c = before.clone();
  const PanelFormat format = product.format();
  Tensor packed(DType::f32, {b_count, b_size});
  for (int64_t i = 0; i < b_count; ++i) {
    const float* from = b.data<float>() + i * problem.k * problem.n;
    float* to = packed.mutable_data<float>() + i * b_size;
    if (problem.b == GemmOperandB::packed) {
      pack_panels({from, problem.k, problem.n, problem.n, 1}, format, 0, format.panels(problem.n), 1, to);
    } else if (problem.b == GemmOperandB::transposed) {
      transpose(from, problem.k, problem.n, problem.n, to, problem.k);
    } else {
      std::copy_n(from, problem.k * problem.n, to);
    }
  }
  Tensor scratch(DType::f32, {problem.threads, product.scratch_elements()});
  for (int thread = 0; thread < problem.threads; ++thread) {
    GemmOperands operands;
    operands.a = a.data<float>();
    operands.b = packed.data<float>();
    operands.c = c.mutable_data<float>();
    operands.a_stride = problem.k;
    operands.b_stride = problem.b == GemmOperandB::transposed ? problem.k : problem.n;
    operands.c_stride = problem.n;
    operands.scratch = scratch.mutable_data<float>() + thread * product.scratch_elements();
    product.run(operands, thread, problem.threads);
  }
  Tensor expected(DType::f32, {problem.batches * problem.m, problem.n});
  for (int64_t i = 0; i < problem.batches * problem.m; ++i) {
    const float* of_batch = b.data<float>() + (shares_b ? 0 : i / problem.m * problem.k * problem.n);
    for (int64_t j = 0; j < problem.n; ++j) {
      double sum = problem.accumulates ? double(before.data<float>()[i * problem.n + j]) : 0;
      for (int64_t p = 0; p < problem.k; ++p) {
        sum += double(a.data<float>()[i * problem.k + p]) * double(of_batch[p * problem.n + j]);
      }
      expected.mutable_data<float>()[i * problem.n + j] = static_cast<float>(sum);
    }
  }
  expect_near(c, expected, problem.k + (problem.accumulates ? 1 : 0));
}

TEST(GemmProduct, IsRightUnderAnyValidPlan) {
  std::mt19937 random(20240612);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int tried = 0;
  for (int round = 0; round < 2000 && tried < 200; ++round) {
    GemmProblem problem;
    problem.isa = isas_here()[static_cast<size_t>(round) % isas_here().size()];
    problem.m = pick(1, 70);
    problem.n = pick(1, 150);
    problem.k = pick(0, 60);
    problem.b = static_cast<GemmOperandB>(pick(0, 2));
    problem.threads = pick(1, 3);
    problem.batches = pick(1, 3);
    problem.accumulates = pick(0, 1) == 1;
    GemmPlan plan;
    plan.rows = pick(1, 28);
    plan.vecs = pick(1, 6);
    plan.k_unroll = pick(1, 4);
    plan.k_block = pick(1, 40);
    plan.row_block = pick(1, 60);
    plan.embed_broadcast = pick(0, 2) == 0;
    plan.pack_b = pick(0, 1);
    plan.split = static_cast<GemmSplit>(pick(0, 2));
    if (!is_valid(plan, problem)) continue;
    SCOPED_TRACE(problem.key() + " threads " + std::to_string(problem.threads) + " " + plan.key());
    check_product(problem, plan, random);
    if (HasFatalFailure()) return;
    ++tried;
  }
  EXPECT_GE(tried, 150);
}

TEST(GemmProduct, RuleGivesAValidPlanForEveryShape) {
  for (const Isa isa : isas_here()) {
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 49, 1000}) {
      for (const int64_t n : {1, 15, 16, 17, 1000}) {
        for (const int64_t k : {0, 1, 1024, 4096}) {
          for (const GemmOperandB b : {GemmOperandB::packed, GemmOperandB::row_major, GemmOperandB::transposed}) {
            GemmProblem problem{1, m, n, k, b, {}, isa, 2};
            EXPECT_TRUE(is_valid(default_gemm_plan(problem), problem)) << problem.key();
          }
        }
      }
    }
  }
}

TEST(GemmSplit, IsByRowsWhereThereAreManyOrPanelsAreUneven) {
  const auto split = [](int64_t m, int64_t n, int64_t panel, int threads = 2, int64_t batches = 1) {
    return choose_split(
        {.batches = batches, .m = m, .n = n, .panel_columns = panel, .tile_rows = 8, .threads = threads});
  };
  EXPECT_EQ(split(128, 768, 48), GemmSplit::columns) << "by rows each would stream all of B for few of them";
  EXPECT_EQ(split(1024, 768, 48), GemmSplit::rows) << "by columns each would read what the other wrote";
  EXPECT_EQ(split(4096, 768, 48, 8), GemmSplit::rows);
  EXPECT_EQ(split(1024, 768, 48, 2, 2), GemmSplit::columns) << "of their own products";
  EXPECT_EQ(split(128, 256, 48), GemmSplit::rows) << "144 columns for one, 112 for the other";
  EXPECT_EQ(split(128, 240, 48), GemmSplit::rows) << "five panels";
  EXPECT_EQ(split(128, 64, 48), GemmSplit::rows);
  EXPECT_EQ(split(8, 768, 48), GemmSplit::columns) << "one tile of rows";
  EXPECT_EQ(split(1024, 768, 48, 1), GemmSplit::columns);
  EXPECT_EQ(split(0, 768, 48), GemmSplit::columns);
  EXPECT_EQ(split(1024, 0, 48), GemmSplit::columns);
}

TEST(PackedWeights, TellOfALargeMatrixWhileItIsPacked) {
  testing::PassNet net;
  net.output(net.op("MatMul", {net.input({2, 1500}), net.weights({1500, 3001})}));
  infer_types(net.graph);
  int calls = 0;
  size_t packed_before_last = 0, last = 0;
  PackedWeights packed([&](size_t bytes) {
    ++calls;
    packed_before_last += last;
    last = bytes;
  });
  testing::FallbackPlans plans;
  (void)lower_graph(net.graph, {OpRegistry::builtin(), {usable_isa(), 1}, packed, plans, nullptr});
  EXPECT_GE(calls, 3);
  EXPECT_GE(packed_before_last, size_t{1500} * 3001 * 4 / 3);
}

TEST(GemmPlan, LetsRowsShareALastVectorOfFewColumns) {
  GemmProblem problem;
  problem.isa = Isa::avx512;
  problem.m = problem.k = 100;
  const auto rows_for = [&](int64_t columns, const CoreRates& rates) {
    problem.n = columns;
    return rows_that_share(problem, rates);
  };
  EXPECT_EQ(rows_for(24, kZen5), 2);
  EXPECT_EQ(rows_for(36, kZen5), 4);
  EXPECT_EQ(rows_for(48, kZen5), 1);
  EXPECT_EQ(rows_for(42, kZen5), 1) << "more than half";
  EXPECT_EQ(rows_for(24, kZen4), 1);
  problem.zero_columns = 12;
  EXPECT_EQ(rows_for(32, kZen5), 4);
  problem.zero_columns = 0;
  const auto vectors_for = [&](int64_t columns) {
    problem.n = columns;
    return default_gemm_plan(problem, kZen5).vecs;
  };
  EXPECT_EQ(vectors_for(24), 2);
  EXPECT_EQ(vectors_for(40), 3) << "no panel of one vector";
  problem.isa = Isa::avx2;
  EXPECT_EQ(rows_for(20, kZen5), 1);
  problem.isa = Isa::avx512;
  problem.b = GemmOperandB::row_major;
  EXPECT_EQ(rows_for(24, kZen5), 1) << "its columns end where it does";
}

TEST(GemmPlan, MultipliesHalfAVectorWhereThatTakesHalfTheTime) {
  GemmProblem problem;
  problem.isa = Isa::avx512;
  problem.m = problem.k = 100;
  const auto halves = [&](int64_t columns, const CoreRates& rates) {
    problem.n = columns;
    return halves_last(problem, rates);
  };
  EXPECT_TRUE(halves(24, kZen4));
  EXPECT_TRUE(halves(33, kZen4));
  EXPECT_FALSE(halves(25, kZen4)) << "more than half";
  EXPECT_FALSE(halves(32, kZen4)) << "whole vectors";
  EXPECT_FALSE(halves(24, kZen5)) << "its rows share registers";
  EXPECT_FALSE(halves(24, kXeon));
  problem.zero_columns = 8;
  EXPECT_TRUE(halves(32, kZen4));
  problem.zero_columns = 0;
  problem.n = 40;
  EXPECT_EQ(default_gemm_plan(problem, kZen4).vecs, 3) << "no panel of one vector";
  problem.isa = Isa::avx2;
  EXPECT_FALSE(halves(20, kZen4));
}

// As measured on an Emerald Rapids.
TEST(GemmPlan, TakesWidePanelsForShortSumsOfAXeon) {
  const auto chosen = [](int64_t rows, int64_t columns, int64_t k, const CoreRates& rates) {
    GemmProblem problem;
    problem.isa = Isa::avx512;
    problem.batches = 36;
    problem.m = rows;
    problem.n = columns;
    problem.k = k;
    return default_gemm_plan(problem, rates).vecs;
  };
  EXPECT_EQ(chosen(196, 64, 64, kXeon), 4);
  EXPECT_EQ(chosen(28, 64, 32, kXeon), 4);
  EXPECT_EQ(chosen(28, 64, 64, kXeon), 2) << "panels come too fast";
  EXPECT_EQ(chosen(196, 256, 128, kXeon), 2);
  EXPECT_EQ(chosen(196, 80, 64, kXeon), 2) << "a panel of one vector would be left over";
  EXPECT_EQ(chosen(196, 64, 64, kZen5), 2);
}

TEST(GemmPlan, TilesOfAPanelFetchNoMoreAheadThanIsReadUnlessFewerFetch) {
  EXPECT_EQ(lines_of_each(20, 1), 20);
  EXPECT_EQ(lines_of_each(12, 2), 6);
  EXPECT_EQ(lines_of_each(12, 5), 4) << "three of them";
  EXPECT_EQ(lines_of_each(8, 20), 1);
}

TEST(GemmPlan, FetchesWeightsOfFewRowsAheadWhereTheyAreWaitedFor) {
  const auto fetches = [](int64_t rows, WeightFormat weights, const CoreRates& rates) {
    GemmProblem problem;
    problem.isa = Isa::avx512;
    problem.m = rows;
    problem.n = problem.k = 2048;
    return fetches_weights(problem, weights, rates);
  };
  EXPECT_TRUE(fetches(2, WeightFormat::f32, kXeon));
  EXPECT_FALSE(fetches(1, WeightFormat::f32, kXeon));
  EXPECT_TRUE(fetches(1, WeightFormat::bf16, kXeon));
  EXPECT_TRUE(fetches(3, WeightFormat::f32, kZen5));
  EXPECT_FALSE(fetches(2, WeightFormat::f32, kZen5));
  EXPECT_TRUE(fetches(2, WeightFormat::bf16, kZen5));
  EXPECT_FALSE(fetches(1, WeightFormat::bf16, kZen5));
  EXPECT_FALSE(fetches(2, WeightFormat::bfp20, kZen5));
  EXPECT_FALSE(fetches(9, WeightFormat::f32, kXeon)) << "many rows";
  EXPECT_FALSE(fetches(8, WeightFormat::bf16, kZen4));
}

TEST(GemmPlan, ComesBackFromItsCandidate) {
  GemmPlan plan{7, 3, 2, 77, 99, true, true, GemmSplit::rows};
  EXPECT_EQ(GemmPlan::from_candidate(plan.to_candidate()), plan);
}

TEST(GemmTuning, BuildsRunnersForItsFallbackAndRefusesImpossiblePlans) {
  GemmProblem problem{1, 20, 40, 30, GemmOperandB::packed, {}, usable_isa(), 2};
  const TuningTask task = gemm_tuning_task(problem);
  const Runner runner = task.build(task.space.fallback);
  ASSERT_TRUE(runner);
  runner();
  runner();
  Candidate impossible = task.space.fallback;
  impossible["rows"] = 1000;
  EXPECT_FALSE(task.build(impossible));
  EXPECT_FALSE(task.space.allowed(impossible));
}

}  // namespace
}  // namespace lathe
