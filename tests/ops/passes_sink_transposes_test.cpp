// Transposes that move down until they meet their inverse, and those that must stay where they are.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

const Ints kToLast{0, 2, 3, 1}, kToFirst{0, 3, 1, 2};

std::string sunk(PassNet& net) {
  return ops_of(
      rewritten(net, {passes::sink_transposes, passes::fold_constants, passes::remove_identities, passes::remove_dead,
                      passes::sink_transposes, passes::remove_identities, passes::remove_dead}));
}

TEST(SinkTransposes, MeetTheirInverseBehindPointwiseNodes) {
  PassNet net;
  ValueId y = net.transpose(net.op("Relu", {net.input(Dims{1, 3, 4, 5})}), kToLast);
  y = net.op("Add", {y, net.weights({3})});
  y = net.op("Mul", {net.scalar(2), y});
  y = net.op("Sigmoid", {y});
  net.output(net.op("Neg", {net.transpose(y, kToFirst)}));
  EXPECT_EQ(sunk(net), "Relu Add Mul Sigmoid Neg");
}

TEST(SinkTransposes, MeetEachOtherInASumAndInAConcat) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast),
                b = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  const ValueId sum = net.op("Add", {a, b});
  const ValueId all =
      net.op("Concat", {sum, net.transpose(net.input(Dims{1, 2, 4, 5}), kToLast)}, {{"axis", int64_t{3}}});
  net.output(net.op("Relu", {net.transpose(all, kToFirst)}));
  EXPECT_EQ(sunk(net), "Add Concat Relu");
}

TEST(SinkTransposes, PassPaddingMeansAndSoftmaxWithTheirAxes) {
  PassNet net;
  ValueId y = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  y = net.op("Pad", {y, net.integers({0, 1, 2, 0, 0, 0, 1, 0})});
  y = net.op("ReduceMean", {y}, {{"axes", Ints{1}}});
  y = net.op("Softmax", {y}, {{"axis", int64_t{2}}});
  net.output(net.op("Relu", {net.transpose(y, kToFirst)}));
  EXPECT_EQ(sunk(net), "Pad ReduceMean Softmax Relu");
}

TEST(SinkTransposes, StayBeforeAnOperandThatIsNotTransposed) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  net.output(net.op("Add", {a, net.input(Dims{1, 4, 5, 3})}));
  EXPECT_EQ(sunk(net), "Transpose Add");
}

TEST(SinkTransposes, StayWhereOthersReadThemToo) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  net.output(a);
  net.output(net.op("Relu", {a}));
  EXPECT_EQ(sunk(net), "Transpose Relu");
}

TEST(SinkTransposes, StayBetweenTwoOrders) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{1, 4, 4, 4}), kToLast),
                b = net.transpose(net.input(Dims{1, 4, 4, 4}), kToFirst);
  net.output(net.op("Add", {a, b}));
  EXPECT_EQ(sunk(net), "Transpose Transpose Add");
}

TEST(SinkTransposes, StayBeforeAReductionThatDropsItsAxis) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  net.output(net.op("ReduceMean", {a}, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}}));
  EXPECT_EQ(sunk(net), "Transpose ReduceMean");
}

TEST(SinkTransposes, StayBeforeAnOperandOfHigherRank) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{3, 4}), {1, 0});
  net.output(net.op("Add", {a, net.weights({2, 4, 3})}));
  EXPECT_EQ(sunk(net), "Transpose Add");
}

}  // namespace
}  // namespace lathe
