// Convolutions that share their input, side by side in one.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

ValueId conv(PassNet& net, ValueId x, int64_t channels, int64_t size, bool has_bias = true, int64_t stride = 1) {
  const int64_t inputs = 16, pad = size / 2;
  std::vector<ValueId> operands{x, net.weights({channels, inputs, size, size})};
  if (has_bias) operands.push_back(net.weights({channels}));
  return net.op("Conv", operands, {{"pads", Ints{pad, pad, pad, pad}}, {"strides", Ints{stride, stride}}});
}
std::string merged(PassNet& net) { return ops_of(rewritten(net, {passes::fuse_epilogue, passes::merge_convolutions})); }

TEST(MergeConvolutions, TakesThoseOfOneShapeWithWhatFollowsThem) {
  PassNet net;
  const ValueId x = net.op("Sigmoid", {net.input(Dims{1, 16, 4, 4})});
  const ValueId a = net.op("Relu", {conv(net, x, 8, 3)}), b = net.op("Relu", {conv(net, x, 16, 3, false)});
  net.output(net.op("Softmax", {a}));
  net.output(net.op("Softmax", {b}));
  EXPECT_EQ(merged(net), "Sigmoid Conv+Relu x2 Split Softmax Softmax");
}

TEST(MergeConvolutions, LeavesOtherShapesStridesAndEpilogues) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 16, 4, 4});
  net.output(net.op("Softmax", {conv(net, x, 8, 1)}));
  net.output(net.op("Softmax", {conv(net, x, 8, 3)}));
  net.output(net.op("Softmax", {conv(net, x, 8, 3, true, 2)}));
  net.output(net.op("Softmax", {net.op("Relu", {conv(net, x, 8, 3)})}));
  EXPECT_EQ(merged(net), "Conv Softmax Conv Softmax Conv Softmax Conv+Relu Softmax");
}

TEST(MergeConvolutions, LeavesPartsOfBlocksSeveralPicturesOutputsAndPartsOfAConcat) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 16, 4, 4}), two = net.input(Dims{2, 16, 4, 4}), z = net.input(Dims{1, 16, 4, 4});
  for (const int64_t channels : {8, 12}) net.output(net.op("Softmax", {conv(net, x, channels, 3)}));
  for (int i = 0; i < 2; ++i) net.output(net.op("Softmax", {conv(net, two, 8, 3)}));
  net.output(conv(net, z, 8, 3));
  net.output(net.op("Concat", {conv(net, z, 8, 3), net.op("Softmax", {conv(net, z, 8, 3)})}, {{"axis", int64_t{1}}}));
  EXPECT_EQ(merged(net).find("Split"), std::string::npos);
}

// Three parts of `channels` each, convolved and joined.
struct Parts {
  PassNet net;
  std::vector<ValueId> of_x, results;

  explicit Parts(int64_t channels, int64_t size = 3, int64_t axis = 1) {
    const Dims dims{1, axis == 1 ? 3 * channels : channels, 6, axis == 1 ? 6 : 18};
    of_x = net.op(
        "Split",
        {net.input(dims), net.integers({axis == 1 ? channels : 6, axis == 1 ? channels : 6, axis == 1 ? channels : 6})},
        3, {{"axis", axis}});
    for (int i = 0; i < 3; ++i) results.push_back(conv(of_x[static_cast<size_t>(i)], channels, size, i != 1));
  }
  ValueId conv(ValueId x, int64_t channels, int64_t size, bool has_bias = true, int64_t dilation = 1) {
    const int64_t pad = size / 2 * dilation;
    std::vector<ValueId> operands{x, net.weights({8, channels, size, size})};
    if (has_bias) operands.push_back(net.weights({8}));
    return net.op("Conv", operands, {{"pads", Ints{pad, pad, pad, pad}}, {"dilations", Ints{dilation, dilation}}});
  }
  std::string grouped(int64_t axis = 1) {
    net.output(net.op("Relu", {net.op("Concat", results, {{"axis", axis}})}));
    return ops_of(rewritten(net, {passes::group_convolutions}));
  }
};
constexpr const char* kApart = "Split Conv Conv Conv Concat Relu";

TEST(GroupConvolutions, TakesThoseOfThePartsOfASplit) {
  EXPECT_EQ(Parts(4).grouped(), "Conv x3 Relu");
  EXPECT_EQ(Parts(1).grouped(), "Conv x3 Relu");
  EXPECT_EQ(Parts(40, 1).grouped(), "Conv x3 Relu");
}

TEST(GroupConvolutions, LeavesWidePartsToWinograd) { EXPECT_EQ(Parts(40).grouped(), kApart); }

TEST(GroupConvolutions, LeavesOtherOrdersAxesAndWindows) {
  Parts swapped(4), other(4);
  std::swap(swapped.results[0], swapped.results[2]);
  EXPECT_EQ(swapped.grouped(), kApart);
  other.results[2] = other.conv(other.of_x[2], 4, 3, true, 2);
  EXPECT_EQ(other.grouped(), "Split Conv Conv Conv Conv Concat Relu");
  EXPECT_EQ(Parts(4, 3, 3).grouped(), kApart);
  EXPECT_EQ(Parts(4).grouped(2), kApart);
}

TEST(GroupConvolutions, LeavesPartsAndResultsThatOthersRead) {
  Parts part(4), result(4), output(4);
  part.net.output(part.net.op("Softmax", {part.of_x[1]}));
  EXPECT_EQ(part.grouped(), "Split Conv Conv Conv Softmax Concat Relu");
  result.net.output(result.net.op("Softmax", {result.results[1]}));
  EXPECT_EQ(result.grouped(), "Split Conv Conv Conv Softmax Concat Relu");
  output.net.output(output.results[2]);
  EXPECT_EQ(output.grouped(), kApart);
}

}  // namespace
}  // namespace lathe
