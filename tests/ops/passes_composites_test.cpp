// Operators put together from the parts that exporters spell them out in, and what only looks like them.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

std::string after(PassNet& net, testing::PassFn* pass) { return ops_of(rewritten(net, {pass, passes::remove_dead})); }

// --- RMSNormalization

enum class Fraction { div, reciprocal, one_over };

ValueId rms_norm(PassNet& net, ValueId x, Fraction fraction, bool by_pow, int64_t axis = -1) {
  const ValueId square = by_pow ? net.op("Pow", {x, net.scalar(2)}) : net.op("Mul", {x, x});
  const ValueId mean = net.op("ReduceMean", {square}, {{"axes", Ints{axis}}});
  const ValueId root = net.op("Sqrt", {net.op("Add", {mean, net.scalar(1e-3f)})});
  if (fraction == Fraction::div) return net.op("Div", {x, root});
  const ValueId factor =
      fraction == Fraction::reciprocal ? net.op("Reciprocal", {root}) : net.op("Div", {net.scalar(1), root});
  return net.op("Mul", {x, factor});
}

TEST(FuseRmsNorm, KnowsItsSpellings) {
  for (const Fraction fraction : {Fraction::div, Fraction::reciprocal, Fraction::one_over}) {
    for (const bool by_pow : {true, false}) {
      PassNet net;
      const ValueId y = rms_norm(net, net.input(Dims{2, 3, 8}), fraction, by_pow);
      net.output(by_pow ? net.op("Mul", {net.weights({8}), y}) : y);
      EXPECT_EQ(after(net, passes::fuse_rms_norm), "RMSNormalization");
    }
  }
}

TEST(FuseRmsNorm, LeavesAnotherAxisAndTheRootOfAnotherValue) {
  PassNet net;
  const ValueId x = net.input(Dims{4, 4}), z = net.input(Dims{4, 4});
  net.output(rms_norm(net, x, Fraction::div, false, 0));
  const ValueId mean = net.op("ReduceMean", {net.op("Mul", {z, z})}, {{"axes", Ints{-1}}});
  net.output(net.op("Div", {x, net.op("Sqrt", {net.op("Add", {mean, net.scalar(0.1f)})})}));
  EXPECT_EQ(after(net, passes::fuse_rms_norm), "Mul ReduceMean Add Sqrt Div Mul ReduceMean Add Sqrt Div");
}

TEST(FuseRmsNorm, LeavesAGainThatIsNoRowAndKeepsANormThatIsAnOutput) {
  PassNet net;
  const ValueId y = rms_norm(net, net.input(Dims{2, 3, 8}), Fraction::div, false);
  net.output(net.op("Mul", {y, net.weights({3, 8})}));
  const ValueId z = rms_norm(net, net.input(Dims{2, 8}), Fraction::div, false);
  net.output(z);
  net.output(net.op("Mul", {z, net.weights({8})}));
  EXPECT_EQ(after(net, passes::fuse_rms_norm), "RMSNormalization Mul RMSNormalization Mul");
}

// --- Softmax

ValueId softmax(PassNet& net, ValueId x, bool subtracts, int64_t axis, int64_t sum_axis) {
  const ValueId top = net.op("ReduceMax", {x}, {{"axes", Ints{axis}}});
  const ValueId powers = net.op("Exp", {subtracts ? net.op("Sub", {x, top}) : x});
  return net.op("Div", {powers, net.op("ReduceSum", {powers, net.integers({sum_axis})})});
}

TEST(FuseSoftmax, KnowsItsSpellings) {
  for (const bool subtracts : {true, false}) {
    for (const int64_t axis : {-1, 0, 1}) {
      PassNet net;
      net.output(softmax(net, net.input(Dims{3, 4, 5}), subtracts, axis, axis < 0 ? 2 : axis));
      EXPECT_EQ(after(net, passes::fuse_softmax), "Softmax");
    }
  }
}

TEST(FuseSoftmax, KeepsTheMaximumOfAnotherAxis) {
  PassNet net;
  net.output(softmax(net, net.input(Dims{3, 4}), true, 0, 1));
  EXPECT_EQ(after(net, passes::fuse_softmax), "ReduceMax Sub Softmax");
}

TEST(FuseSoftmax, LeavesTheSumOfAnotherValueAndOfSeveralAxes) {
  PassNet net;
  const ValueId e = net.op("Exp", {net.input(Dims{3, 4})}), f = net.op("Exp", {net.input(Dims{3, 4})});
  net.output(net.op("Div", {e, net.op("ReduceSum", {f, net.integers({1})})}));
  net.output(net.op("Div", {f, net.op("ReduceSum", {f, net.integers({0, 1})})}));
  EXPECT_EQ(after(net, passes::fuse_softmax), "Exp Exp ReduceSum Div ReduceSum Div");
}

// --- GroupNormalization

ValueId group_norm(PassNet& net, ValueId x, Ints grouped, Ints whole) {
  const int64_t groups = grouped[1];
  const ValueId y =
      net.op("InstanceNormalization", {net.reshape(x, grouped), net.weights({groups}, 0.5f, 2), net.weights({groups})});
  return net.reshape(y, whole);
}

TEST(FuseGroupNorm, TakesGainAndBiasPerChannel) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 6, 4, 5});
  const ValueId y = group_norm(net, x, {0, 3, -1}, {2, 6, 4, 5});
  net.output(net.op("Add", {net.op("Mul", {y, net.weights({6, 1, 1})}), net.weights({1, 6, 1, 1})}));
  net.output(group_norm(net, x, {0, 2, -1}, {2, 6, 4, 5}));
  EXPECT_EQ(after(net, passes::fuse_group_norm), "GroupNormalization GroupNormalization");
}

TEST(FuseGroupNorm, LeavesAGainAlongAnotherAxisAndANormThatIsAnOutput) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 4, 4, 4});
  net.output(net.op("Mul", {group_norm(net, x, {0, 2, -1}, {2, 4, 4, 4}), net.weights({4})}));
  const ValueId y = group_norm(net, x, {0, 2, -1}, {2, 4, 4, 4});
  net.output(y);
  net.output(net.op("Mul", {y, net.weights({4, 1, 1})}));
  EXPECT_EQ(after(net, passes::fuse_group_norm), "GroupNormalization Mul GroupNormalization Mul");
}

TEST(FuseGroupNorm, LeavesGroupsAcrossImagesAndOtherShapesBehind) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 4, 4, 4});
  net.output(group_norm(net, x, {1, 4, -1}, {2, 4, 4, 4}));
  net.output(group_norm(net, x, {2, 2, -1}, {2, 4, 16}));
  EXPECT_EQ(after(net, passes::fuse_group_norm),
            "Reshape InstanceNormalization Reshape Reshape InstanceNormalization Reshape");
}

// --- means of pixels

TEST(PoolMeans, TakesMeansOfAllPixels) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  net.output(net.op("ReduceMean", {x}, {{"axes", Ints{-1, -2}}}));
  net.output(net.op("ReduceMean", {net.op("Relu", {x})}, {{"axes", Ints{2, 3}}, {"keepdims", int64_t{0}}}));
  EXPECT_EQ(after(net, passes::pool_means), "GlobalAveragePool Relu GlobalAveragePool Flatten");
}

TEST(PoolMeans, TakesMaximaAlongALineBehindAConvolution) {
  PassNet net;
  const ValueId x = net.conv(net.input(Dims{2, 3, 20}), {16, 3, 1});
  net.output(net.op("ReduceMax", {net.op("Relu", {x})}, {{"axes", Ints{2}}, {"keepdims", int64_t{0}}}));
  net.output(net.op("ReduceMax", {x}, {{"axes", Ints{1}}}));
  EXPECT_EQ(after(net, passes::pool_means), "Conv Relu GlobalMaxPool Flatten ReduceMax");
}

TEST(PoolMeans, LeavesMeansOfSomePixelsOrOfChannels) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  for (const Ints& axes : {Ints{3}, Ints{1, 2}, Ints{1, 2, 3}, Ints{0, 2}}) {
    net.output(net.op("ReduceMean", {x}, {{"axes", axes}}));
  }
  net.output(net.op("ReduceMean", {net.input(Dims{3, 4, 5})}, {{"axes", Ints{2}}}));
  EXPECT_EQ(after(net, passes::pool_means), "ReduceMean ReduceMean ReduceMean ReduceMean ReduceMean");
}

// The mean of a LayerNormalization over a sequence that a picture became.
TEST(PoolMeans, LeavesMeansOfTransposedLines) {
  PassNet net;
  const ValueId x = net.conv(net.input(Dims{2, 3, 20}), {16, 3, 1});
  const ValueId rows = net.op("Transpose", {net.op("Relu", {x})}, {{"perm", Ints{0, 2, 1}}});
  net.output(net.op("ReduceMean", {rows}, {{"axes", Ints{2}}}));
  EXPECT_EQ(after(net, passes::pool_means), "Conv Relu Transpose ReduceMean");
}

// --- padding

ValueId padded(PassNet& net, ValueId x, Ints pads, float value = 0, const char* mode = "constant") {
  return net.op("Pad", {x, net.integers(pads), net.scalar(value)}, {{"mode", std::string(mode)}});
}
ValueId conv(PassNet& net, ValueId x, Ints pads) {
  return net.op("Conv", {x, net.weights({4, 3, 3, 3})}, {{"pads", std::move(pads)}, {"kernel_shape", Ints{3, 3}}});
}

TEST(FoldPads, GoIntoConvolutionsAndAverages) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 6, 7});
  net.output(conv(net, padded(net, x, {0, 0, 0, 1, 0, 0, 1, 2}), {1, 1, 0, 0}));
  net.output(net.op("AveragePool", {padded(net, x, {0, 0, 1, 1, 0, 0, 1, 0})}, {{"kernel_shape", Ints{2, 3}}}));
  EXPECT_EQ(after(net, passes::fold_pads), "Pad+Conv Pad+AveragePool");
}

TEST(FoldPads, LeavesOtherValuesModesAxesAndNodes) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 6, 7});
  net.output(conv(net, padded(net, x, {0, 0, 1, 1, 0, 0, 1, 1}, 0.5f), {0, 0, 0, 0}));
  net.output(conv(net, padded(net, x, {0, 0, 1, 1, 0, 0, 1, 1}, 0, "reflect"), {0, 0, 0, 0}));
  net.output(conv(net, padded(net, net.input(Dims{1, 2, 6, 7}), {0, 1, 1, 1, 0, 0, 1, 1}), {0, 0, 0, 0}));
  net.output(conv(net, padded(net, x, {0, 0, -1, 0, 0, 0, 0, 0}), {0, 0, 0, 0}));
  net.output(net.op("MaxPool", {padded(net, x, {0, 0, 1, 1, 0, 0, 1, 1})}, {{"kernel_shape", Ints{2, 2}}}));
  EXPECT_EQ(after(net, passes::fold_pads), "Pad Conv Pad Conv Pad Conv Pad Conv Pad MaxPool");
}

TEST(FoldPads, LeavesPaddingThatOthersReadThatIsWiderThanTheWindowOrThatIsNotCounted) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 6, 7}), shared = padded(net, x, {0, 0, 1, 1, 0, 0, 1, 1});
  net.output(conv(net, shared, {0, 0, 0, 0}));
  net.output(net.op("Relu", {shared}));
  net.output(conv(net, padded(net, x, {0, 0, 3, 0, 0, 0, 0, 0}), {0, 0, 0, 0}));
  net.output(net.op("AveragePool", {padded(net, x, {0, 0, 1, 1, 0, 0, 1, 1})},
                    {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}}));
  EXPECT_EQ(after(net, passes::fold_pads), "Pad Conv Relu Pad Conv Pad AveragePool");
}

}  // namespace
}  // namespace lathe
