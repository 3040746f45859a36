#include "ops/task_text.h"

#include <gtest/gtest.h>

#include <random>

#include "lathe/error.h"
#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_int8_tuning.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_tuning.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/int8/int8_product.h"
#include "tests/conv_axis.h"

namespace lathe {
namespace {

// x0 * sigmoid(x0) + x1, where x0 is used twice.
Expression silu_and_add() {
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  const int x = e.add({ExprOp::input, 0});
  const int scaled = e.add({ExprOp::mul, x, e.add({.op = ExprOp::constant, .value = 1e-5F})});
  const int silu = e.add({ExprOp::mul, scaled, e.add({ExprOp::sigmoid, scaled})});
  e.add({ExprOp::add, silu, e.add({ExprOp::input, 1})});
  return e;
}

TEST(TaskText, GemmTasksComeBack) {
  GemmProblem problem{3, 40, 33, 77, GemmOperandB::transposed, {}, usable_isa(), 1, 100, 0};
  for (int with = 0; with < 2; ++with) {
    const TuningTask task = gemm_tuning_task(problem);
    EXPECT_EQ(task_text(task), "gemm " + problem.key());
    EXPECT_EQ(task_text(parse_task(task_text(task), 1)), task_text(task));
    problem.b = GemmOperandB::packed;
    problem.batches = 1;
    problem.allows_strassen = true;
    problem.narrow = WeightFormat::bfp20;
    problem.epilogue = GemmEpilogue{silu_and_add(), {GemmInputAccess::columns}};
  }
}

Expression requantized() {
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  e.output = DType::u8;
  const int scaled = e.add({ExprOp::mul, e.add({ExprOp::input, 0}), e.add({ExprOp::input, 1})});
  const int rounded = e.add({ExprOp::round_even, scaled});
  const int low = e.add({ExprOp::max, rounded, e.add({.op = ExprOp::constant, .value = 0})});
  e.add({ExprOp::min, low, e.add({.op = ExprOp::constant, .value = 255})});
  return e;
}

TEST(TaskText, RandomProductsOfFloatsAndBytesComeBackAndRun) {
  std::mt19937 random(3);
  const auto extent = [&] { return static_cast<int64_t>(1 + random() % 70); };
  for (int round = 0; round < 40; ++round) {
    GemmProblem floats{1 + round % 3, extent(), extent(), extent(), GemmOperandB::packed, {}, usable_isa(), 1, 0, 0};
    if (round % 2 == 0) floats.epilogue = GemmEpilogue{silu_and_add(), {GemmInputAccess::uniform}};
    Int8Problem bytes;
    bytes.batches = 1 + round % 3;
    bytes.m = extent();
    bytes.n = extent();
    bytes.k = extent();
    bytes.isa = int8_isa(usable_isa());
    const Int8Dot of_bytes = has_vnni(bytes.isa) ? Int8Dot::u8s8 : Int8Dot::u8s7;
    bytes.dot = has_dot(bytes.isa, of_bytes) && round % 3 != 0 ? of_bytes : Int8Dot::pairs;
    bytes.has_rows = round % 5 == 0;
    if (round % 2 == 0) bytes.epilogue = GemmEpilogue{requantized(), {GemmInputAccess::columns}};
    for (const TuningTask& task : {gemm_tuning_task(floats), int8_tuning_task(bytes)}) {
      const TuningTask again = parse_task(task_text(task), 1);
      EXPECT_EQ(task_text(again), task_text(task));
      EXPECT_EQ(again.flop, task.flop);
      EXPECT_EQ(again.bytes, task.bytes);
      const Runner runner = again.build(again.space.fallback);
      ASSERT_TRUE(runner) << task.key;
      runner.prepare();
      runner.run();
    }
  }
}

// Scripts strip the lines of a list of tasks.
TEST(TaskText, ProductsWithEpiloguesOfNoOtherInputsEndInNoBlank) {
  Expression halved;
  halved.inputs = {DType::f32};
  halved.add({ExprOp::mul, halved.add({ExprOp::input, 0}), halved.add({.op = ExprOp::constant, .value = 0.5F})});
  GemmProblem floats{1, 40, 33, 77, GemmOperandB::packed, {}, usable_isa(), 1, 0, 0};
  floats.epilogue = {halved, {}};
  Int8Problem bytes;
  bytes.isa = int8_isa(usable_isa());
  bytes.dot = Int8Dot::pairs;
  bytes.m = bytes.n = bytes.k = 64;
  bytes.epilogue = {halved, {}};
  for (const std::string& text : {"gemm " + floats.key(), "gemm_int8 " + bytes.key()}) {
    EXPECT_FALSE(text.ends_with(' ')) << text;
    EXPECT_EQ(task_text(parse_task(text, 1)), text);
    EXPECT_EQ(task_text(parse_task(text + " ", 1)), text) << "as earlier versions wrote it";
  }
}

TEST(TaskText, ConvolutionsOfBytesComeBackAndRunWithAnyTile) {
  for (const Isa isa : usable_isas()) {
    for (const bool is_pointwise : {false, true}) {
      const int lanes = vector_lanes(isa);
      ConvInt8Problem problem;
      problem.isa = int8_isa(isa);
      problem.dot = has_vnni(isa)                      ? Int8Dot::u8s8
                    : is_pointwise && !has_avx512(isa) ? Int8Dot::crossed
                                                       : Int8Dot::pairs;
      problem.in_channels = 64;
      ConvProblem& shape = problem.shape;
      shape.in_channels = problem.in_channels / group_of(problem.dot);
      shape.out_channels = 40;
      shape.window_y = shape.window_x = is_pointwise ? 1 : 3;
      shape.lanes = lanes;
      shape.batch = 2;
      const ConvAxis along = is_pointwise ? testing::axis(12, 1, 0, 0) : testing::axis(12, 3, 1, 1);
      shape.phases = {{along, along, lanes / group_of(problem.dot)}};
      problem.store = {DType::u8, 3, true};
      if (has_byte_tables(isa) && is_pointwise) {
        for (int i = 0; i < 256; ++i) problem.store.table.push_back(static_cast<uint8_t>(255 - i));
      }
      problem.epilogue = {silu_and_add(), {ConvOperand::full}};
      const TuningTask task = conv_int8_tuning_task(problem, 1);
      EXPECT_EQ(task_text(task), "conv_int8 " + problem.key());
      const TuningTask again = parse_task(task_text(task), 1);
      EXPECT_EQ(task_text(again), task_text(task));
      int built = 0;
      for (int cols = 0; cols <= 6; ++cols) {
        Candidate tile = again.space.fallback;
        if (cols > 0) tile = {{"blocks", 1}, {"rows", 1}, {"cols", cols}, {"group", 0}, {"ahead", 0}};
        if (!again.space.allowed(tile)) continue;
        const Runner runner = again.build(tile);
        if (!runner) continue;
        ++built;
        runner.prepare();
        runner.run();
      }
      EXPECT_GE(built, isa == Isa::avx2 ? 2 : 1) << task.key;
      // It would never stop counting input blocks down.
      const int ahead = static_cast<int>(shape.in_channels) + 1;
      EXPECT_FALSE(again.build({{"blocks", 1}, {"rows", 1}, {"cols", 3}, {"group", 0}, {"ahead", ahead}})) << task.key;
    }
  }
}

TEST(TaskText, GroupedConvolutionsOfBytesComeBack) {
  const auto text = [](const std::string& channels) {
    return "conv_int8 avx2 pairs " + channels + "/1 3x3 c8 | y9>7s1[0@0 1@1 2@2]of7 x9>7s1[0@0 1@1 2@2]of7 c4 | none";
  };
  for (const std::string& channels : {text("k96/2 int32+0 n1 48>96"), text("k36/3 int32+0 n1 20>36")}) {
    EXPECT_EQ(task_text(parse_task(channels, 1)), channels);
  }
  EXPECT_THROW(parse_task(text("k96/5 int32+0 n1 48>96"), 1), Error);
  EXPECT_THROW(parse_task(text("k36/3 int32+0 n1 18>36"), 1), Error) << "a block of the input is not whole";
}

TEST(TaskText, ConvolutionsComeBack) {
  const int lanes = vector_lanes(usable_isa());
  ConvProblem problem;
  problem.in_channels = 20;
  problem.out_channels = 40;
  problem.window_y = problem.window_x = 3;
  problem.lanes = lanes;
  problem.has_bias = true;
  problem.phases = {{testing::axis(14, 3, 1, 1), testing::axis(17, 3, 1, 1, 2), lanes}};
  problem.epilogue = {silu_and_add(), {ConvOperand::full}};
  problem.most_winograd = 2;
  problem.longest_winograd_sum = 0;
  problem.longest_sum = 256;
  const std::string text = task_text(conv_tuning_task(problem, usable_isa(), 1));
  EXPECT_EQ(task_text(parse_task(text, 1)), text);
}

TEST(TaskText, ConvolutionsOfVolumesComeBackAndRefuseFramesThatDoNotFit) {
  const int lanes = vector_lanes(usable_isa());
  ConvProblem problem;
  problem.batch = 6;
  problem.in_channels = 3 * 2 * lanes;
  problem.out_channels = 40;
  problem.window_y = problem.window_x = 3;
  problem.lanes = lanes;
  problem.frames = {.out = 3, .in = 5, .step = 1, .joined = 3, .are_outer = true};
  problem.phases = {{testing::axis(14, 3, 1, 1), testing::axis(17, 3, 1, 1), lanes}};
  const std::string text = task_text(conv_tuning_task(problem, usable_isa(), 1));
  const TuningTask task = parse_task(text, 1);
  EXPECT_EQ(task_text(task), text);
  EXPECT_TRUE(static_cast<bool>(task.build(task.space.fallback)));
  for (const char* wrong : {"frames 4>3 step1 join3 stack1 outer", "frames 5>4 step1 join3 stack1 outer",
                            "frames 5>3 step2 join3 stack1 outer", "frames 5>3 step1 join3 stack1",
                            "frames 5>3 step1 join4 stack1 outer", "frames 5>3 step1 join3 stack4 outer"}) {
    std::string other = text;
    other.replace(other.find("frames"), std::string("frames 5>3 step1 join3 stack1 outer").size(), wrong);
    EXPECT_THROW(parse_task(other, 1), Error) << wrong;
  }
}

TEST(TaskText, TransposedConvolutionsComeBackWithAllPhases) {
  const int lanes = vector_lanes(usable_isa());
  ConvProblem problem;
  problem.in_channels = problem.out_channels = lanes;
  problem.window_y = problem.window_x = 2;
  problem.is_transposed = true;
  problem.lanes = lanes;
  Window window;
  window.kernel = {2, 2};
  window.strides = {2, 2};
  window.dilations = {1, 1};
  window.pads_begin = {0, 0};
  window.pads_end = {0, 0};
  for (const ConvAxis& y : conv_transpose_axes(window, 0, 6, 12))
    for (const ConvAxis& x : conv_transpose_axes(window, 1, 6, 12)) problem.phases.push_back({y, x, lanes});
  const std::string text = task_text(conv_tuning_task(problem, usable_isa(), 1));
  const TuningTask task = parse_task(text, 1);
  EXPECT_EQ(task_text(task), text);
  const Runner runner = task.build(task.space.fallback);
  ASSERT_TRUE(runner);
  runner.prepare();
  runner.run();
}

TEST(TaskText, NonsenseIsRefusedWithItsPlace) {
  for (const char* text :
       {"", "conv", "lstm x", "gemm f32 b1 m4 n4 k4 packed riscv", "gemm f32 b1 m-4 n4 k4 packed avx2",
        "gemm f32 b1 m4 n4 k4 packed avx2 x0 + ", "gemm f32 b1 m4 n4 k4 packed avx2 exp(x0, x1) cc", "conv_int8",
        "conv_int8 avx2 pairs k8 uint8+0 n1 4>8/1 1x1 c8 | y1>1s1[0@0]of1 x9>9s1[0@0]of9 c9 | max(x0, 0):f",
        "conv_int8 avx2 pairs k9 uint8+0 n1 4>8/1 1x1 c8 | y1>1s1[0@0]of1 x9>9s1[0@0]of9 c4 | none", "gemm_int8",
        "gemm_int8 u9s8 b1 m4 n4 k4 avx2", "gemm_int8 u8s8 b1 m4 n4 k4 avx2", "gemm_int8 pairs b1 m4 n0 k4 avx2",
        "gemm_int8 pairs b1 m4 n4 k4 avx2 x0 + x1 [float32 -> uint8] c", "conv avx2 n1 8>8/3 1x1 c8 | none",
        "conv avx2 n1 8>8/1 1x1 c8 | none"}) {
    EXPECT_THROW(parse_task(text, 1), Error) << text;
  }
}

}  // namespace
}  // namespace lathe
