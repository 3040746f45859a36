// Norms from parts in other spellings, over rows or over pixels, and repeated pixels; and what only looks like them.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

std::string fused(PassNet& net) {
  return ops_of(rewritten(
      net, {passes::fuse_layer_norm, passes::fuse_instance_norm, passes::fuse_upsample, passes::remove_dead}));
}

ValueId mean(PassNet& net, ValueId x, const Ints& axes) { return net.op("ReduceMean", {x}, {{"axes", axes}}); }
ValueId deviation(PassNet& net, ValueId x, const Ints& axes) { return net.op("Sub", {x, mean(net, x, axes)}); }
ValueId root(PassNet& net, ValueId d, const Ints& axes) {
  return net.op("Sqrt", {net.op("Add", {mean(net, net.op("Mul", {d, d}), axes), net.scalar(1e-3f)})});
}

// x * m + (bias - mean * m), as TensorFlow spells it.
ValueId tensorflow_norm(PassNet& net, ValueId x, ValueId gain, ValueId bias, const Ints& of_mean, const Ints& axes) {
  const ValueId r = net.op("Reciprocal", {root(net, deviation(net, x, of_mean), axes)});
  const ValueId m = net.op("Mul", {r, gain});
  return net.op("Add", {net.op("Mul", {x, m}), net.op("Sub", {bias, net.op("Mul", {mean(net, x, of_mean), m})})});
}

TEST(FuseLayerNorm, TakesTensorFlowsSpelling) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 8});
  net.output(tensorflow_norm(net, x, net.weights({8}), net.weights({8}), {2}, {2}));
  EXPECT_EQ(fused(net), "LayerNormalization");
}

TEST(FuseLayerNorm, LeavesOtherAxesAndShapesInThatSpelling) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 8});
  net.output(tensorflow_norm(net, x, net.weights({8}), net.weights({8}), {1}, {1}));
  net.output(tensorflow_norm(net, x, net.weights({3, 1}), net.weights({8}), {2}, {2}));
  net.output(tensorflow_norm(net, x, net.weights({8}), net.weights({8}), {2}, {1}));
  EXPECT_EQ(fused(net).find("LayerNormalization"), std::string::npos) << fused(net);
}

TEST(FuseLayerNorm, TakesAReciprocalForTheDivision) {
  PassNet net;
  const ValueId d = deviation(net, net.input(Dims{2, 3, 8}), {-1});
  net.output(net.op("Mul", {net.op("Reciprocal", {root(net, d, {-1})}), d}));
  EXPECT_EQ(fused(net), "LayerNormalization");
}

// Over the channels of pictures, as ConvNeXt, SAM and others have it.
TEST(FuseLayerNorm, TurnsChannelsOfPicturesIntoRows) {
  for (const Dims& row : {Dims{16, 1, 1}, Dims{1, 16, 1, 1}}) {
    PassNet net;
    const ValueId d = deviation(net, net.input(Dims{2, 16, 3, 5}), {1});
    ValueId y = net.op("Mul", {net.op("Div", {d, root(net, d, {-3})}), net.weights(row)});
    net.output(net.op("Add", {y, net.weights(row)}));
    EXPECT_EQ(fused(net), "Transpose LayerNormalization Transpose");
  }
}

TEST(FuseLayerNorm, TurnsChannelsWithoutGainAndWithOpenExtents) {
  PassNet net;
  const ValueId x = net.input(TensorType{DType::f32, true, {{-1, "n"}, {16, ""}, {-1, "w"}}, {}});
  const ValueId d = deviation(net, x, {1});
  net.output(net.op("Div", {d, root(net, d, {1})}));
  const ValueId z = net.input(Dims{2, 16, 3, 5});
  net.output(tensorflow_norm(net, z, net.weights({16, 1, 1}), net.weights({16, 1, 1}), {1}, {1}));
  EXPECT_EQ(fused(net), "Transpose LayerNormalization Transpose Transpose LayerNormalization Transpose");
}

TEST(FuseLayerNorm, LeavesFewChannelsAndRowsAlongOtherAxes) {
  PassNet net;
  const ValueId d = deviation(net, net.input(Dims{2, 4, 3, 5}), {1});
  net.output(net.op("Div", {d, root(net, d, {1})}));
  EXPECT_EQ(fused(net).find("LayerNormalization"), std::string::npos);
  PassNet wide;  // as many columns as channels
  const ValueId e = deviation(wide, wide.input(Dims{2, 16, 3, 16}), {1});
  wide.output(wide.op("Mul", {wide.op("Div", {e, root(wide, e, {1})}), wide.weights({16})}));
  EXPECT_EQ(fused(wide), "Transpose LayerNormalization Transpose Mul");
}

TEST(FuseInstanceNorm, TakesMeansOfPixelsWithGainAndBias) {
  PassNet net;
  const ValueId d = deviation(net, net.input(Dims{2, 3, 4, 5}), {2, 3});
  ValueId y = net.op("Div", {d, root(net, d, {2, 3})});
  y = net.op("Add", {net.op("Mul", {y, net.weights({3, 1, 1})}), net.weights({1, 3, 1, 1})});
  net.output(y);
  const ValueId e = deviation(net, net.input(Dims{2, 3, 5}), {-1});
  net.output(net.op("Mul", {net.op("Div", {e, root(net, e, {2})}), net.weights({5})}));  // of rows: the other one
  EXPECT_EQ(fused(net), "InstanceNormalization LayerNormalization");
}

TEST(FuseInstanceNorm, LeavesOtherAxesAndFactorsOfOtherShape) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  const ValueId d = deviation(net, x, {1, 2, 3});
  net.output(net.op("Div", {d, root(net, d, {1, 2, 3})}));
  const ValueId e = deviation(net, x, {2, 3});
  net.output(net.op("Mul", {net.op("Div", {e, root(net, e, {2, 3})}), net.weights({4, 5})}));
  const ValueId f = deviation(net, x, {2, 3});
  net.output(net.op("Div", {f, root(net, e, {3})}));
  EXPECT_EQ(fused(net).substr(0, 10), "ReduceMean") << fused(net);
  EXPECT_NE(fused(net).find("InstanceNormalization Mul"), std::string::npos) << fused(net);
}

ValueId repeated(PassNet& net, ValueId x, const Ints& apart, const Ints& wide, const Ints& joined) {
  return net.reshape(net.op("Expand", {net.reshape(x, apart), net.integers(wide)}), joined);
}

TEST(FuseUpsample, TakesRepeatedRowsAndColumns) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 4, 5});
  net.output(repeated(net, x, {1, 3, 4, 1, 5, 1}, {1, 3, 4, 2, 5, 3}, {1, 3, 8, 15}));
  const ValueId apart = net.op("Unsqueeze", {x, net.integers({3, 5})});
  net.output(net.reshape(net.op("Tile", {apart, net.integers({1, 1, 1, 2, 1, 2})}), {1, 3, 8, 10}));
  EXPECT_EQ(fused(net), "Resize Resize");
}

TEST(FuseUpsample, LeavesOtherOrdersOfAxes) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 4, 5});
  net.output(repeated(net, x, {1, 3, 1, 4, 1, 5}, {1, 3, 2, 4, 2, 5}, {1, 3, 8, 10}));  // whole pictures repeated
  net.output(repeated(net, x, {1, 3, 4, 1, 5, 1}, {1, 3, 4, 2, 5, 2}, {1, 3, 10, 8}));
  net.output(repeated(net, x, {1, 3, 4, 1, 5, 1}, {2, 3, 4, 2, 5, 1}, {2, 3, 8, 5}));
  EXPECT_EQ(fused(net).find("Resize"), std::string::npos) << fused(net);
}

// ---- fold-norms

std::string folded(PassNet& net) { return ops_of(rewritten(net, {passes::fold_norms})); }

ValueId layer_norm(PassNet& net, ValueId x, bool has_bias = true, int64_t axis = -1) {
  const int64_t columns = 6;
  std::vector<ValueId> operands{x, net.weights({columns})};
  if (has_bias) operands.push_back(net.weights({columns}));
  return net.op("LayerNormalization", operands, {{"axis", axis}});
}

TEST(FoldNorms, TakesFactorsAndSummandsOfColumns) {
  PassNet net;
  for (const bool has_bias : {true, false}) {
    ValueId y = layer_norm(net, net.input(Dims{2, 4, 6}), has_bias);
    y = net.op("Mul", {net.weights({6}), net.op("Add", {y, net.weights({1, 1, 6})})});
    net.output(net.op("Sub", {net.scalar(2), net.op("Div", {y, net.scalar(3)})}));
  }
  EXPECT_EQ(folded(net), "LayerNormalization+Add+Mul+Div+Sub LayerNormalization+Add+Mul+Div+Sub");
}

TEST(FoldNorms, KnowsTheChannelsOfInstancesAndGroups) {
  PassNet net;
  const auto behind = [&](ValueId y) {
    net.output(net.op("Add", {net.op("Mul", {y, net.weights({4, 1, 1})}), net.weights({1, 4, 1, 1})}));
  };
  const ValueId x = net.input(Dims{2, 4, 5, 4});
  behind(net.op("InstanceNormalization", {x, net.weights({4}), net.weights({4})}));
  behind(net.op("GroupNormalization", {x, net.weights({4}), net.weights({4})}, {{"num_groups", int64_t{2}}}, 21));
  behind(net.op("GroupNormalization", {x, net.weights({2}), net.weights({2})}, {{"num_groups", int64_t{2}}}, 18));
  EXPECT_EQ(folded(net), "InstanceNormalization+Mul+Add GroupNormalization+Mul+Add GroupNormalization Mul Add");
}

TEST(FoldNorms, LeavesSummandsBehindARootMean) {
  PassNet net;
  const ValueId y = net.op("RMSNormalization", {net.input(Dims{2, 4, 6}), net.weights({6})}, {}, 23);
  net.output(net.op("Add", {net.op("Mul", {y, net.weights({6})}), net.weights({6})}));
  EXPECT_EQ(folded(net), "RMSNormalization+Mul Add");
}

TEST(FoldNorms, LeavesOtherAxesReadersAndOverflow) {
  PassNet net;
  net.output(net.op("Mul", {layer_norm(net, net.input(Dims{2, 4, 6})), net.weights({4, 1})}));
  const ValueId read = layer_norm(net, net.input(Dims{2, 4, 6}));
  net.output(net.op("Mul", {read, net.weights({6})}));
  net.output(net.op("Neg", {read}));
  const ValueId wanted = layer_norm(net, net.input(Dims{2, 4, 6}));
  net.output(wanted);
  net.output(net.op("Mul", {wanted, net.weights({6})}));
  const ValueId wide =
      net.op("LayerNormalization", {net.input(Dims{2, 4, 6}), net.weights({4, 6})}, {{"axis", int64_t{1}}});
  net.output(net.op("Mul", {wide, net.weights({6})}));
  const ValueId instance =
      net.op("InstanceNormalization", {net.input(Dims{2, 4, 4}), net.weights({4}), net.weights({4})});
  net.output(net.op("Mul", {instance, net.weights({4})}));  // along the pixels
  EXPECT_EQ(folded(net),
            "LayerNormalization Mul LayerNormalization Mul Neg LayerNormalization Mul LayerNormalization Mul "
            "InstanceNormalization Mul");
  PassNet large;
  const ValueId y = large.op("LayerNormalization", {large.input({2, 6}), large.weights({6}, 1e30F, 2e30F)});
  large.output(large.op("Mul", {y, large.scalar(1e30F)}));
  Graph after = large.graph;
  const Limits limits;
  infer_types(after, limits);
  EXPECT_FALSE(passes::fold_norms(after, {OpRegistry::builtin(), limits, 8}));
}

}  // namespace
}  // namespace lathe
