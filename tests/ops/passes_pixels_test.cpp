// 1x1 convolutions among pools, enlarged pictures and rows of pixels: where passes fire, and near misses.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

// ---- hoist-pools

struct Transition {
  PassNet net;
  ValueId convolved;

  explicit Transition(const Dims& weights = {16, 8, 1, 1}, PassNet::NamedAttributes attributes = {}) {
    convolved = net.conv(net.input({2, 8, 7, 6}), weights, std::move(attributes));
  }
  std::string pooled(PassNet::NamedAttributes attributes, const char* op = "AveragePool") {
    net.output(net.op(op, {convolved}, std::move(attributes)));
    return ops_of(rewritten(net, {passes::hoist_pools}));
  }
};
PassNet::NamedAttributes windows(int64_t size, int64_t stride, int64_t pad = 0, int64_t counts_pads = 0) {
  return {{"kernel_shape", Ints{size, size}},
          {"strides", Ints{stride, stride}},
          {"pads", Ints{pad, pad, pad, pad}},
          {"count_include_pad", counts_pads}};
}
constexpr const char* kPoolFirst = "AveragePool Conv";
constexpr const char* kConvFirst = "Conv AveragePool";

TEST(HoistPools, ConvolvesMeansInsteadOfPixels) {
  EXPECT_EQ(Transition().pooled(windows(2, 2)), kPoolFirst);
  EXPECT_EQ(Transition().pooled(windows(3, 2, 1)), kPoolFirst);
  EXPECT_EQ(Transition().pooled(windows(2, 2, 0, 1)), kPoolFirst);
  EXPECT_EQ(Transition({16, 4, 1, 1}, {{"group", int64_t{2}}}).pooled(windows(2, 2)), kPoolFirst);
  EXPECT_EQ(Transition().pooled({}, "GlobalAveragePool"), "GlobalAveragePool Conv");
}

TEST(HoistPools, TakesExtentsThatAreNotKnown) {
  PassNet net;
  TensorType type = TensorType::of(DType::f32, {1, 8, 6, 6});
  type.dims[2] = {-1, "height"};
  net.output(net.op("AveragePool", {net.conv(net.input(type), {16, 8, 1, 1})}, windows(2, 2)));
  EXPECT_EQ(ops_of(rewritten(net, {passes::hoist_pools})), kPoolFirst);
}

TEST(HoistPools, LeavesABiasThatZerosOfABorderDilute) {
  EXPECT_EQ(Transition().pooled(windows(3, 2, 1, 1)), kConvFirst);
  PassNet net;
  const ValueId x = net.conv(net.input({1, 8, 7, 7}), {16, 8, 1, 1}, {}, false);
  net.output(net.op("AveragePool", {x}, windows(3, 2, 1, 1)));
  EXPECT_EQ(ops_of(rewritten(net, {passes::hoist_pools})), kPoolFirst);
}

TEST(HoistPools, LeavesAsManyPixelsWindowsStridesMaximaAndFewChannels) {
  EXPECT_EQ(Transition().pooled(windows(3, 1, 1)), kConvFirst);
  EXPECT_EQ(Transition({16, 8, 3, 3}).pooled(windows(2, 2)), kConvFirst);
  EXPECT_EQ(Transition({16, 8, 1, 1}, {{"strides", Ints{2, 2}}}).pooled(windows(2, 2)), kConvFirst);
  EXPECT_EQ(Transition({16, 8, 1, 1}, {{"pads", Ints{1, 1, 1, 1}}}).pooled(windows(2, 2)), kConvFirst);
  EXPECT_EQ(Transition({8, 8, 1, 1}).pooled(windows(2, 2)), kConvFirst);
  EXPECT_EQ(Transition().pooled({{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}, "MaxPool"), "Conv MaxPool");
  Transition read;
  read.net.output(read.convolved);
  EXPECT_EQ(read.pooled(windows(2, 2)), kConvFirst);
}

// ---- sink-upsamples

struct Neck {
  PassNet net;

  ValueId picture(int64_t channels, int64_t size = 6) { return net.input(Dims{2, channels, size, size}); }
  ValueId to_size(ValueId x, int64_t channels, int64_t size, PassNet::NamedAttributes attributes = {}) {
    return net.op("Resize", {x, ValueId::none, ValueId::none, net.integers({2, channels, size, size})},
                  std::move(attributes));
  }
  ValueId by_scale(ValueId x, float scale, PassNet::NamedAttributes attributes = {}) {
    const ValueId scales = net.constant(Tensor::from<float>({4}, std::vector<float>{1, 1, scale, scale}));
    return net.op("Resize", {x, ValueId::none, scales}, std::move(attributes));
  }
  ValueId joined(const std::vector<ValueId>& parts) { return net.op("Concat", parts, {{"axis", int64_t{1}}}); }
  std::string sunk(ValueId result) {
    net.output(result);
    return ops_of(rewritten(net, {passes::sink_upsamples, passes::remove_dead}));
  }
};

TEST(SinkUpsamples, EnlargesWhatIsConvolved) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* coordinates : {"half_pixel", "align_corners", "asymmetric"}) {
      Neck sizes, scales;
      const PassNet::NamedAttributes how{{"mode", std::string(mode)},
                                         {"coordinate_transformation_mode", std::string(coordinates)}};
      const ValueId wide = sizes.to_size(sizes.picture(64), 64, 15, how);
      EXPECT_EQ(sizes.sunk(sizes.net.conv(wide, {32, 64, 1, 1})), "Conv Resize") << mode << coordinates;
      const ValueId twice = scales.by_scale(scales.picture(64), 2, how);
      EXPECT_EQ(scales.sunk(scales.net.conv(twice, {32, 64, 1, 1})), "Conv Resize") << mode << coordinates;
    }
  }
}

TEST(SinkUpsamples, TakesTheEnlargedPartsOutOfAConcat) {
  Neck two, three;
  const ValueId skip = two.picture(32, 12);
  const ValueId one = two.joined({two.by_scale(two.picture(64), 2), skip});
  EXPECT_EQ(two.sunk(two.net.conv(one, {64, 96, 1, 1})), "Conv Resize Conv Add");
  const ValueId large = three.picture(64, 12), other = three.picture(16, 12), small = three.picture(64, 3);
  const ValueId all = three.joined({large, three.by_scale(three.picture(64), 2), other, three.by_scale(small, 4)});
  EXPECT_EQ(three.sunk(three.net.conv(all, {64, 208, 1, 1})), "Conv Resize Conv Resize Concat Conv Add Add");
}

TEST(SinkUpsamples, OnePixelSpreadsByItself) {
  Neck beside, alone;
  const ValueId parts = beside.joined({beside.picture(32), beside.to_size(beside.picture(64, 1), 64, 6)});
  EXPECT_EQ(beside.sunk(beside.net.conv(parts, {64, 96, 1, 1})), "Conv Conv Add");
  const ValueId pixels =
      alone.joined({alone.to_size(alone.picture(64, 1), 64, 6), alone.to_size(alone.picture(64, 1), 64, 6)});
  EXPECT_EQ(alone.sunk(alone.net.conv(pixels, {64, 128, 1, 1})), "Conv Resize Conv Add");
}

// A global feature beside each point, as PointNet has it.
TEST(SinkUpsamples, OnePixelThatIsRepeatedSpreadsByItself) {
  Neck expanded, tiled, alone;
  const ValueId all = expanded.net.op("Expand", {expanded.picture(64, 1), expanded.net.integers({2, 64, 6, 6})});
  const ValueId parts = expanded.joined({expanded.picture(32), all});
  EXPECT_EQ(expanded.sunk(expanded.net.conv(parts, {64, 96, 1, 1})), "Conv Conv Add");
  const ValueId line = tiled.net.op("Tile", {tiled.net.input(Dims{2, 64, 1}), tiled.net.integers({1, 1, 30})});
  const ValueId points = tiled.joined({line, tiled.net.input(Dims{2, 16, 30})});
  EXPECT_EQ(tiled.sunk(tiled.net.conv(points, {64, 80, 1})), "Conv Conv Add");
  const ValueId only = alone.net.op("Expand", {alone.picture(64, 1), alone.net.integers({2, 64, 6, 6})});
  EXPECT_EQ(alone.sunk(alone.net.conv(only, {64, 64, 1, 1})), "Expand Conv");
}

TEST(SinkUpsamples, LeavesWhatWouldBeMoreToEnlarge) {
  Neck wider, smaller;
  EXPECT_EQ(wider.sunk(wider.net.conv(wider.by_scale(wider.picture(8), 2), {64, 8, 1, 1})), "Resize Conv");
  EXPECT_EQ(smaller.sunk(smaller.net.conv(smaller.to_size(smaller.picture(64), 64, 4), {32, 64, 1, 1})), "Resize Conv");
}

TEST(SinkUpsamples, LeavesOtherReadersWindowsStridesAndBorders) {
  Neck read, window, stride, border, group;
  const ValueId shared = read.by_scale(read.picture(64), 2);
  read.net.output(read.net.op("Relu", {shared}));
  EXPECT_EQ(read.sunk(read.net.conv(shared, {32, 64, 1, 1})), "Resize Relu Conv");
  EXPECT_EQ(window.sunk(window.net.conv(window.by_scale(window.picture(64), 2), {32, 64, 3, 3})), "Resize Conv");
  const ValueId twice = stride.by_scale(stride.picture(64), 2);
  EXPECT_EQ(stride.sunk(stride.net.conv(twice, {32, 64, 1, 1}, {{"strides", Ints{2, 2}}})), "Resize Conv");
  const ValueId inner = border.by_scale(border.picture(64), 2);
  EXPECT_EQ(border.sunk(border.net.conv(inner, {32, 64, 1, 1}, {{"pads", Ints{1, 1, 1, 1}}})), "Resize Conv");
  const ValueId two = group.by_scale(group.picture(64), 2);
  EXPECT_EQ(group.sunk(group.net.conv(two, {32, 32, 1, 1}, {{"group", int64_t{2}}})), "Resize Conv");
}

TEST(SinkUpsamples, LeavesChannelsAndPicturesThatAreEnlargedToo) {
  Neck channels;
  const ValueId scales = channels.net.constant(Tensor::from<float>({4}, std::vector<float>{1, 2, 2, 2}));
  const ValueId wide = channels.net.op("Resize", {channels.picture(32), ValueId::none, scales});
  EXPECT_EQ(channels.sunk(channels.net.conv(wide, {32, 64, 1, 1})), "Resize Conv");
}

// ---- convolve-pixels

struct Projection {
  PassNet net;
  ValueId picture;

  Projection() { picture = net.input(Dims{2, 6, 4, 5}); }
  ValueId rows_of(ValueId x, int64_t channels) { return net.transpose(net.reshape(x, {2, channels, 20}), {0, 2, 1}); }
  ValueId rows() { return rows_of(picture, 6); }
  ValueId times(ValueId x, int64_t outputs = 8, int64_t inputs = 6) {
    return net.op("Add", {net.weights({outputs}), net.op("MatMul", {x, net.weights({inputs, outputs})})});
  }
  std::string convolved(ValueId result) {
    net.output(result);
    return ops_of(rewritten(net, {passes::convolve_pixels, passes::remove_dead}));
  }
  ValueId back(ValueId x, const Ints& dims = {2, 8, 4, 5}) { return net.reshape(net.transpose(x, {0, 2, 1}), dims); }
  ValueId depthwise(ValueId x, int64_t channels = 8) {
    return net.conv(x, {channels, 1, 3, 3}, {{"pads", Ints{1, 1, 1, 1}}, {"group", channels}});
  }
  ValueId gelu(ValueId x) {
    const ValueId inner = net.op("Add", {net.op("Erf", {net.op("Div", {x, net.scalar(1.5f)})}), net.scalar(1)});
    return net.op("Mul", {net.op("Mul", {x, inner}), net.scalar(0.5f)});
  }
};
constexpr const char* kRows = "Reshape Transpose MatMul Add Transpose Reshape";

TEST(ConvolvePixels, ThereAndBackIsAConvolution) {
  Projection biased, plain;
  EXPECT_EQ(biased.convolved(biased.back(biased.times(biased.rows()))), "MatMul+Add");
  EXPECT_EQ(plain.convolved(plain.back(plain.net.op("MatMul", {plain.rows(), plain.net.weights({6, 8})}))), "MatMul");
}

TEST(ConvolvePixels, CopiesTheFewerChannelsBeforeAWiderPicture) {
  Projection wider, narrower;
  const ValueId x = wider.net.input(Dims{2, 20, 6});
  EXPECT_EQ(wider.convolved(wider.depthwise(wider.back(wider.times(x)))), "Transpose Reshape MatMul+Add Conv");
  const ValueId y = narrower.net.input(Dims{2, 20, 12});
  EXPECT_EQ(narrower.convolved(narrower.depthwise(narrower.back(narrower.times(y, 8, 12)))),
            "MatMul Add Transpose Reshape Conv");
}

TEST(ConvolvePixels, CopiesTheFewerChannelsBehindANarrowerProduct) {
  Projection narrower, wider;
  const ValueId x = narrower.gelu(narrower.rows_of(narrower.depthwise(narrower.picture, 6), 6));
  EXPECT_EQ(narrower.convolved(narrower.times(x, 4)), "Conv Div Erf Add Mul Mul MatMul+Add Reshape Transpose");
  const ValueId y = wider.rows_of(wider.depthwise(wider.picture, 6), 6);
  EXPECT_EQ(wider.convolved(wider.times(y, 8)), "Conv Reshape Transpose MatMul Add");
}

TEST(ConvolvePixels, LeavesPointwiseWorkThatOthersRead) {
  Projection shared, masked;
  const ValueId x = shared.net.op("Relu", {shared.rows_of(shared.depthwise(shared.picture, 6), 6)});
  shared.net.output(shared.net.op("Softmax", {x}));
  EXPECT_EQ(shared.convolved(shared.times(x, 4)), "Conv Reshape Transpose Relu Softmax MatMul Add");
  const ValueId rows = masked.rows_of(masked.depthwise(masked.picture, 6), 6);
  const ValueId by_row = masked.net.op("Mul", {rows, masked.net.weights({20, 1})});
  EXPECT_EQ(masked.convolved(masked.times(by_row, 4)), "Conv Reshape Transpose Mul MatMul Add");
}

TEST(ConvolvePixels, LeavesOtherPicturesOrdersAndReaders) {
  Projection turned, order, read;
  EXPECT_EQ(turned.convolved(turned.back(turned.times(turned.rows()), {2, 8, 5, 4})), kRows);
  EXPECT_EQ(order.convolved(order.net.reshape(order.times(order.rows()), {2, 8, 4, 5})),
            "Reshape Transpose MatMul Add Reshape");
  const ValueId product = read.times(read.rows());
  read.net.output(product);
  EXPECT_EQ(read.convolved(read.back(product)), kRows);
}

// ---- remove-identities: Resize

TEST(RemoveIdentities, DropsAResizeToTheExtentsThatAreThere) {
  const auto left = [](const char* coordinates, const char* mode, bool by_scale) {
    Neck neck;
    const PassNet::NamedAttributes how{{"coordinate_transformation_mode", std::string(coordinates)},
                                       {"mode", std::string(mode)}};
    const ValueId x = neck.picture(3);
    const ValueId same = by_scale ? neck.by_scale(x, 1, how) : neck.to_size(x, 3, 6, how);
    neck.net.output(neck.net.op("Relu", {same}));
    return ops_of(rewritten(neck.net, {passes::remove_identities}));
  };
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    EXPECT_EQ(left("half_pixel", mode, false), "Relu");
    EXPECT_EQ(left("align_corners", mode, true), "Relu");
  }
  EXPECT_EQ(left("tf_half_pixel_for_nn", "nearest", false), "Resize Relu");
}

TEST(RemoveIdentities, KeepsAResizeWhoseScaleIsNotQuiteOne) {
  Neck neck;
  neck.net.output(neck.net.op("Relu", {neck.by_scale(neck.picture(3), 1.1f, {{"mode", std::string("linear")}})}));
  EXPECT_EQ(ops_of(rewritten(neck.net, {passes::remove_identities})), "Resize Relu");
}

}  // namespace
}  // namespace lathe
