// Transposes at the borders of chains of channel blocks.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

ValueId conv(PassNet& net, ValueId x, int64_t inputs, int64_t outputs) {
  return net.op("Conv", {x, net.weights({outputs, inputs, 1, 1})});
}

bool both_passes(Graph& graph, const PassContext& context) {
  EXPECT_TRUE(passes::choose_layouts(graph, context));
  passes::absorb_reorders(graph, context);
  verify(graph);
  return false;  // once is enough
}

std::string absorbed(PassNet& net) { return ops_of(rewritten(net, {both_passes})); }

TEST(AbsorbReorders, LetsATransposeReadBlocks) {
  PassNet net;
  net.output(net.transpose(conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16), {0, 2, 3, 1}));
  EXPECT_EQ(absorbed(net), "Conv Transpose");
}

TEST(AbsorbReorders, LetsATransposeWriteBlocks) {
  PassNet net;
  net.output(net.op("Relu", {conv(net, net.transpose(net.input(Dims{1, 4, 4, 16}), {0, 3, 1, 2}), 16, 16)}));
  EXPECT_EQ(absorbed(net), "Transpose Conv Relu Reorder");
}

TEST(AbsorbReorders, SeesThroughAReshapeOfThePixels) {
  PassNet net;
  ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  y = net.op("Softmax", {net.transpose(net.reshape(y, {1, 16, 16}), {0, 2, 1})});
  y = conv(net, net.reshape(net.transpose(y, {0, 2, 1}), {0, 0, 2, 8}), 16, 16);
  net.output(net.transpose(y, {0, 2, 3, 1}));
  EXPECT_EQ(absorbed(net), "Conv Reshape Transpose Softmax Transpose Reshape Conv Transpose");
}

TEST(AbsorbReorders, DoesNotSeeThroughAReshapeOfChannels) {
  PassNet net;
  const ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  net.output(net.transpose(net.reshape(y, {1, 4, 4, 16}), {0, 3, 1, 2}));
  EXPECT_EQ(absorbed(net), "Conv Reorder Reshape Transpose");
}

TEST(AbsorbReorders, KeepsAReorderThatOthersRead) {
  PassNet net;
  const ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  net.output(net.transpose(y, {0, 2, 3, 1}));
  net.output(net.op("Softmax", {y}, {{"axis", int64_t{3}}}));
  EXPECT_EQ(absorbed(net), "Conv Reorder Transpose Softmax");
}

TEST(AbsorbReorders, KeepsAReorderOfWhatTheUserWants) {
  PassNet net;
  const ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  net.output(y);
  net.output(net.transpose(y, {0, 2, 3, 1}));
  EXPECT_EQ(absorbed(net), "Conv Reorder Transpose");
  PassNet other;
  const ValueId turned = other.transpose(other.input(Dims{1, 4, 4, 16}), {0, 3, 1, 2});
  other.output(turned);
  other.output(other.op("Relu", {conv(other, turned, 16, 16)}));
  EXPECT_EQ(absorbed(other), "Transpose Reorder Conv Relu Reorder");
}

TEST(AbsorbReorders, DoesOneSideOnly) {
  PassNet net;
  const ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  net.output(net.op("Relu", {conv(net, net.transpose(y, {0, 3, 1, 2}), 4, 16)}));
  EXPECT_EQ(absorbed(net), "Conv Transpose Conv Relu Reorder");
}

// ---- layouts through Pad

std::string padded(const std::vector<int64_t>& pads, const char* mode) {
  PassNet net;
  const ValueId y = conv(net, net.input(Dims{1, 3, 4, 4}), 3, 16);
  const ValueId wide = net.op("Pad", {y, net.integers(pads)}, {{"mode", std::string(mode)}});
  net.output(net.op("Relu", {conv(net, wide, 16 + pads[1] + pads[5], 16)}));
  return absorbed(net);
}

TEST(ChooseLayouts, GoThroughPadsOfPixels) {
  EXPECT_EQ(padded({0, 0, 1, 2, 0, 0, -1, 0}, "constant"), "Conv Pad Conv Relu Reorder");
  EXPECT_EQ(padded({0, 0, 1, 2, 0, 0, 1, 0}, "reflect"), "Conv Pad Conv Relu Reorder");
}

TEST(ChooseLayouts, StopAtPadsOfChannelsAndAtRepeatsOfWhatIsCut) {
  EXPECT_EQ(padded({0, 1, 0, 0, 0, -1, 0, 0}, "constant"), "Conv Reorder Pad Reorder Conv Relu Reorder");
  EXPECT_EQ(padded({0, 0, 1, 2, 0, 0, -1, 0}, "reflect"), "Conv Reorder Pad Reorder Conv Relu Reorder");
}

}  // namespace
}  // namespace lathe
