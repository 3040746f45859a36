// Shuffled channels from their parts, and what only looks like them.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

std::string fused(PassNet& net) { return ops_of(rewritten(net, {passes::fuse_shuffle, passes::remove_dead})); }

TEST(FuseShuffle, TakesChannelsOfPicturesAndOfJoinedPixels) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 6, 4, 5});
  ValueId y = net.transpose(net.reshape(x, {2, 3, 2, 4, 5}), {0, 2, 1, 3, 4});
  y = net.op("Relu", {net.reshape(y, {2, 6, 4, 5})});
  y = net.transpose(net.reshape(y, {2, 2, 3, 20}), {0, 2, 1, 3});
  net.output(net.reshape(y, {2, 6, 4, 5}));
  EXPECT_EQ(fused(net), "Reshape+Transpose+Reshape Relu Reshape+Transpose+Reshape");
}

TEST(FuseShuffle, LeavesOtherOrdersAndOtherAxes) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 6, 4, 5});
  net.output(net.reshape(net.transpose(net.reshape(x, {2, 3, 2, 4, 5}), {0, 2, 1, 4, 3}), {2, 6, 4, 5}));
  net.output(net.reshape(net.transpose(net.reshape(x, {2, 6, 2, 2, 5}), {0, 2, 1, 3, 4}), {2, 6, 4, 5}));
  EXPECT_EQ(fused(net), "Reshape Transpose Reshape Reshape Transpose Reshape");
}

TEST(FuseShuffle, LeavesOneThatJoinsToAnotherShape) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 6, 4, 5});
  net.output(net.reshape(net.transpose(net.reshape(x, {2, 3, 2, 4, 5}), {0, 2, 1, 3, 4}), {2, 6, 20}));
  EXPECT_EQ(fused(net), "Reshape Transpose Reshape");
}

TEST(FuseShuffle, LeavesATransposeThatOthersRead) {
  PassNet net;
  const ValueId turned = net.transpose(net.reshape(net.input(Dims{2, 6, 4, 5}), {2, 3, 2, 4, 5}), {0, 2, 1, 3, 4});
  net.output(net.reshape(turned, {2, 6, 4, 5}));
  net.output(turned);
  EXPECT_EQ(fused(net), "Reshape Transpose Reshape");
}

}  // namespace
}  // namespace lathe
