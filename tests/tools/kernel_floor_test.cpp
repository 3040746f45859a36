#include <gtest/gtest.h>

#include <utility>

#include "tests/ops/one_node.h"
#include "tools/machine_peak.h"
#include "tools/node_task.h"

namespace lathe::tools {
namespace {

KernelPeaks peaks() {
  KernelPeaks made;
  made.gflops = {100, 200, 400, 200};
  made.gdivisions = 20;
  made.levels = {{"L1", 1'000, 200, 100, 150}, {"L2", 10'000, 100, 80, 90}, {"memory", 1'000'000, 10, 5, 8}};
  return made;
}

TEST(KernelFloor, IsTheArithmeticOfTheKindWhereThatBinds) {
  const Floor floats = floor_of({.flop = 1e9, .bytes = 900}, peaks());
  EXPECT_DOUBLE_EQ(floats.seconds, 1e-2);
  EXPECT_EQ(floats.bound, "f32");
  const Floor bytes = floor_of({.flop = 1e9, .arithmetic = Arithmetic::bytes, .bytes = 900}, peaks());
  EXPECT_DOUBLE_EQ(bytes.seconds, 2.5e-3);
  EXPECT_EQ(bytes.bound, "bytes");
}

TEST(KernelFloor, IsTheWayThroughTheCacheThatOperandsFitInto) {
  // 600 bytes read and written as a copy does, 300 more of either kind.
  EXPECT_DOUBLE_EQ(floor_of({.bytes = 900, .written_bytes = 300}, peaks()).seconds, 600 / 150e9 + 300 / 200e9);
  EXPECT_DOUBLE_EQ(floor_of({.bytes = 900, .written_bytes = 600}, peaks()).seconds, 600 / 150e9 + 300 / 100e9);
  const Floor middle = floor_of({.bytes = 9'000}, peaks());
  EXPECT_DOUBLE_EQ(middle.seconds, 9'000 / 100e9);
  EXPECT_EQ(middle.bound, "L2");
  EXPECT_EQ(floor_of({.bytes = 90'000}, peaks()).bound, "memory");
}

TEST(KernelFloor, TakesWeightsFromMemory) {
  const Floor floor = floor_of({.bytes = 1'900, .weight_bytes = 1'000, .written_bytes = 400}, peaks());
  EXPECT_DOUBLE_EQ(floor.seconds, 1'000 / 10e9);
  EXPECT_EQ(floor.bound, "memory");
}

TEST(KernelFloor, TurnsReadWeightsAgainFromWhereTheyAreKept) {
  const Work work{.flop = 3e5,
                  .bytes = 9'000,
                  .weight_bytes = 8'000,
                  .reread_bytes = 80'000'000,
                  .reread_near_bytes = 8'000,
                  .reread_flop = 2e5};
  EXPECT_DOUBLE_EQ(floor_of(work, peaks()).seconds, 1e5 / 100e9 + 80'000'000 / 100e9);
  EXPECT_EQ(floor_of(work, peaks()).bound, "L2");
  Work busy = work;
  busy.flop = 1e9;
  busy.reread_flop = 9e8;
  EXPECT_EQ(floor_of(busy, peaks()).bound, "f32") << "arithmetic takes longer";
}

TEST(KernelFloor, KnowsWhatTimeStepsReadAgain) {
  testing::FallbackPlans plans;
  const TuningTask task = parse_node_task(
      "node GRU@14[direction=\"bidirectional\", hidden_size=32](float32[5,1,8], const float32[2,96,8], const "
      "float32[2,96,32]) -> float32[5,2,1,32]",
      1, plans);
  EXPECT_EQ(task.reread_bytes, 4 * 2 * 96 * 32 * 4);
  EXPECT_EQ(task.reread_near_bytes, 96 * 32 * 4);
  EXPECT_EQ(task.reread_flop, 5 * 2 * 2 * 96 * 32);
  EXPECT_GT(task.flop, task.reread_flop);
}

TEST(KernelFloor, IsTheDivisionsWhereTheyBind) {
  const Floor floor = floor_of({.flop = 1e9, .bytes = 900, .divisions = 1e9}, peaks());
  EXPECT_DOUBLE_EQ(floor.seconds, 5e-2);
  EXPECT_EQ(floor.bound, "div");
}

TEST(KernelFloor, DivisionsTakeTurnsOfProducts) {
  KernelPeaks among = peaks();
  among.division_flop = 10;
  const Floor floor = floor_of({.flop = 1e9, .bytes = 900, .divisions = 1e8}, among);
  EXPECT_DOUBLE_EQ(floor.seconds, 2e-2);
  EXPECT_EQ(floor.bound, "f32");
}

TEST(KernelFloor, RowsOfTablesComeAsRowsDo) {
  KernelPeaks slow = peaks();
  slow.scattered_read = 5;
  const Work work{.bytes = 1'900, .weight_bytes = 1'000, .written_bytes = 400, .has_scattered_weights = true};
  EXPECT_DOUBLE_EQ(floor_of(work, slow).seconds, 1'000 / 5e9);
  EXPECT_EQ(floor_of(work, slow).bound, "rows");
}

TEST(KernelFloor, OfANodeHasItsCall) {
  KernelPeaks called = peaks();
  called.call_seconds = 1e-9;
  const Floor large = floor_of({.bytes = 900, .is_node = true}, called);
  EXPECT_DOUBLE_EQ(large.seconds, 900 / 200e9 + 1e-9);
  EXPECT_EQ(large.bound, "L1");
  EXPECT_EQ(floor_of({.bytes = 100, .is_node = true}, called).bound, "call");
  EXPECT_DOUBLE_EQ(floor_of({.bytes = 900}, called).seconds, 900 / 200e9);
}

TEST(KernelFloor, KnowsWhatFunctionsTake) {
  const PointwiseWork sigmoid = pointwise_work("node Sigmoid@17(float32[2,50]) -> float32[2,50]");
  EXPECT_EQ(sigmoid.divisions, 100);
  EXPECT_GT(sigmoid.flop, 100 * 2 * 6);
  const PointwiseWork chain =
      pointwise_work("node lathe.Pointwise@1(float32[2,50]) -> float32[2,50] then sigmoid(x0) / 3");
  EXPECT_EQ(chain.divisions, 200);
  EXPECT_EQ(chain.flop, sigmoid.flop);
  EXPECT_EQ(pointwise_work("node Relu@17(float32[2,50]) -> float32[2,50]").flop, 0);
  EXPECT_TRUE(chain.is_all);
  const PointwiseWork softmax = pointwise_work("node Softmax@17(float32[2,50]) -> float32[2,50]");
  EXPECT_EQ(softmax.flop, 0) << "no expression";
  EXPECT_FALSE(softmax.is_all);
}

TEST(KernelFloor, KnowsWhatProductsDoBehindTheirSums) {
  const PointwiseWork product =
      pointwise_work("node MatMul@13(float32[2,8], const float32[8,25]) -> float32[2,25] then sigmoid(x0)");
  EXPECT_EQ(product.divisions, 50);
  EXPECT_GT(product.flop, 50 * 2 * 6);
  EXPECT_FALSE(product.is_all);
}

TEST(KernelFloor, MeasuresEveryLevelOfThisMachine) {
  const KernelPeaks measured = measure_kernel_peaks(1);
  EXPECT_GT(measured.gdivisions, 0);
  EXPECT_GE(measured.division_flop, 0);
  EXPECT_GT(measured.scattered_read, 0);
  for (const double gflops : measured.gflops) EXPECT_GT(gflops, 0);
  ASSERT_GE(measured.levels.size(), 7U) << "three caches, by halves at least, and memory";
  size_t before = 0;
  for (const KernelPeaks::Level& level : measured.levels) {
    EXPECT_GT(level.bytes, std::exchange(before, level.bytes)) << level.name;
    EXPECT_GT(level.read, 0) << level.name;
    EXPECT_GT(level.write, 0) << level.name;
    EXPECT_GT(level.copy, 0) << level.name;
  }
}

}  // namespace
}  // namespace lathe::tools
