#include "ops/work_split.h"

#include <gtest/gtest.h>

#include "tests/ops/one_node.h"

namespace lathe {
namespace {

int threads_of(testing::OneNode one, int threads) {
  PackedWeights packed;
  testing::FallbackPlans plans;
  const Target target{Isa::avx2, threads};
  const LoweredGraph lowered = lower_graph(one.graph, {OpRegistry::builtin(), target, packed, plans, nullptr});
  EXPECT_EQ(lowered.steps.size(), 1u);
  return lowered.steps.front().threads;
}

testing::OneNode node(const std::string& domain, const std::string& op, int version, const Dims& dims, int block = 0) {
  testing::OneNode one{.domain = domain, .inputs = {Tensor(DType::f32, dims)}, .is_constant = {false}};
  Attributes attributes;
  if (op == "ShuffleChannels") attributes.set("groups", int64_t{4});
  one.make(op, version, std::move(attributes), {block}, block);
  return one;
}

TEST(WorkSplit, GivesEachThreadSoMuchToMove) {
  EXPECT_EQ(worthwhile_movers(0, 8), 1);
  EXPECT_EQ(worthwhile_movers(63e3, 8), 1);
  EXPECT_EQ(worthwhile_movers(64e3, 8), 2);
  EXPECT_EQ(worthwhile_movers(1e9, 8), 8);
}

TEST(WorkSplit, SplitsPointwiseWorkOfAMicrosecond) {
  EXPECT_EQ(threads_of(node("", "Relu", 14, {1, 4000}), 4), 1);
  EXPECT_EQ(threads_of(node("", "Relu", 14, {1, 8000}), 4), 2);
  EXPECT_EQ(threads_of(node("", "Relu", 14, {1, 80000}), 4), 4);
  // Many operations on few elements.
  EXPECT_EQ(threads_of(node("", "Erf", 13, {1, 14000}), 4), 4);
}

TEST(WorkSplit, SplitsShufflesOnceBothHaveLongStrips) {
  EXPECT_EQ(threads_of(node("lathe", "ShuffleChannels", 1, {1, 64, 14, 14}, 8), 2), 1);
  EXPECT_EQ(threads_of(node("lathe", "ShuffleChannels", 1, {1, 128, 14, 14}, 8), 2), 2);
}

}  // namespace
}  // namespace lathe
