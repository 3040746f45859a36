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

TEST(SinkTransposes, PassWhatDropsAxes) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{2, 3, 4, 5}), kToLast);
  net.output(net.op("ReduceMean", {a}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{0}}}));
  const ValueId b = net.transpose(net.input(Dims{2, 3, 1, 5}), kToLast);
  net.output(net.op("Relu", {net.op("Squeeze", {b, net.integers({1})})}));
  EXPECT_EQ(sunk(net), "ReduceMean Squeeze Relu Transpose");
}

TEST(SinkTransposes, PassResizeSliceAndSplitWithTheirAxes) {
  PassNet net;
  ValueId y = net.transpose(net.input(Dims{1, 4, 4, 5}), kToLast);
  const ValueId factors = net.constant(Tensor::from<float>({4}, {1.f, 2.f, 1.f, 1.f}));
  y = net.op("Resize", {y, ValueId::none, factors}, {{"mode", std::string("linear")}});
  y = net.op("Resize", {y, ValueId::none, ValueId::none, net.integers({1, 8, 10, 4})});
  y = net.op("Slice", {y, net.integers({1, 0}), net.integers({7, 3}), net.integers({1, -1})});
  const std::vector<ValueId> parts = net.op("Split", {y, net.integers({1, 2})}, 2, {{"axis", int64_t{3}}});
  for (const ValueId part : parts) net.output(net.op("Relu", {net.transpose(part, kToFirst)}));
  EXPECT_EQ(sunk(net), "Resize Resize Slice Split Relu Relu");
}

TEST(SinkTransposes, StayBeforeAResizeOfARegion) {
  PassNet net;
  const ValueId y = net.transpose(net.input(Dims{1, 4, 4, 5}), kToLast);
  const ValueId region = net.constant(Tensor::from<float>({8}, {0, 0, 0, 0, 1, 1, 1, 1}));
  net.output(net.op("Resize", {y, region, ValueId::none, net.integers({1, 8, 10, 4})},
                    {{"coordinate_transformation_mode", std::string("tf_crop_and_resize")}}));
  EXPECT_EQ(sunk(net), "Transpose Resize");
}

TEST(SinkTransposes, GoThroughWhatReadsThemTwice) {
  PassNet net;
  const ValueId x = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  const ValueId y = net.op("Mul", {x, net.op("Sigmoid", {net.op("Mul", {x, net.scalar(1.7f)})})});
  net.output(net.op("Neg", {net.transpose(y, kToFirst)}));
  EXPECT_EQ(sunk(net), "Mul Sigmoid Mul Neg");
}

TEST(SinkTransposes, StayWhereTwoWouldBeLeft) {
  PassNet net;
  const ValueId x = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  net.output(net.op("Sigmoid", {x}));
  net.output(net.op("Tanh", {x}));
  EXPECT_EQ(sunk(net), "Transpose Sigmoid Tanh");
}

TEST(SinkTransposes, AreNotKeptByWhoeverAsksForExtents) {
  PassNet net;
  const ValueId x =
      net.transpose(net.input({DType::f32, true, {{-1, "n"}, {3, ""}, {4, ""}, {5, ""}}, {}, nullptr}), kToLast);
  net.output(net.op("Shape", {x}));
  net.output(net.op("Neg", {net.transpose(net.op("Relu", {x}), kToFirst)}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_transposes, passes::remove_identities, passes::remove_dead})),
            "Shape Gather Relu Neg");
}

TEST(SinkTransposes, PassSlopesPerChannel) {
  PassNet net;
  const ValueId x = net.transpose(net.input(Dims{1, 3, 4, 5}), kToLast);
  const ValueId y = net.op("PRelu", {x, net.weights({1, 1, 3})});
  net.output(net.op("Neg", {net.transpose(y, kToFirst)}));
  EXPECT_EQ(sunk(net), "PRelu Neg");
}

TEST(SinkTransposes, StayBeforeAnOperandOfHigherRank) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{3, 4}), {1, 0});
  net.output(net.op("Add", {a, net.weights({2, 4, 3})}));
  EXPECT_EQ(sunk(net), "Transpose Add");
}

}  // namespace
}  // namespace lathe
