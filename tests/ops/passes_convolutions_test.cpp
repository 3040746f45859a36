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

}  // namespace
}  // namespace lathe
