// The order of execution, where it decides how much memory is alive.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

ValueId row_sum(PassNet& net, ValueId x) { return net.op("ReduceSum", {x, net.integers({1})}); }

TEST(OrderForMemory, BranchesThatSwellAndShrinkRunOneBehindTheOther) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 4});
  std::vector<ValueId> wide, narrow;
  for (int i = 0; i < 4; ++i) wide.push_back(net.op("Expand", {x, net.integers({100, 4})}));
  for (const ValueId each : wide) narrow.push_back(row_sum(net, each));
  net.output(net.op("Sum", narrow));
  EXPECT_EQ(ops_of(rewritten(net, {passes::order_for_memory})),
            "Expand ReduceSum Expand ReduceSum Expand ReduceSum Expand ReduceSum Sum");
}

TEST(OrderForMemory, AViewKeepsItsValueAlive) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 4});
  std::vector<ValueId> wide, narrow;
  for (int i = 0; i < 3; ++i) wide.push_back(net.reshape(net.op("Expand", {x, net.integers({100, 4})}), {4, 100}));
  for (const ValueId each : wide) narrow.push_back(row_sum(net, each));
  net.output(net.op("Sum", narrow));
  EXPECT_EQ(ops_of(rewritten(net, {passes::order_for_memory})),
            "Expand Reshape ReduceSum Expand Reshape ReduceSum Expand Reshape ReduceSum Sum");
}

TEST(OrderForMemory, StaysWhereAnotherSavesLittle) {
  PassNet net;
  const ValueId x = net.input(Dims{100, 4});
  const ValueId a = net.op("Relu", {x}), small = net.op("Tanh", {net.input(Dims{4})});
  net.output(net.op("Add", {row_sum(net, net.op("Sigmoid", {a})), small}));
  net.output(net.op("Neg", {net.op("Exp", {a})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::order_for_memory})), "Relu Tanh Sigmoid ReduceSum Add Exp Neg");
}

}  // namespace
}  // namespace lathe
