// Convolutions behind one another as one, and strides where they save most: where they fire, and near misses.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

// ---- join-convolutions

std::string joined(PassNet& net) { return ops_of(rewritten(net, {passes::join_convolutions})); }

TEST(JoinConvolutions, JoinsWhatIsLessToCompute) {
  struct Case {
    Dims first, second;
    Ints strides;
  };
  for (const Case& each : {Case{{16, 4, 1, 1}, {5, 16, 1, 1}, {1, 1}}, Case{{8, 3, 3, 3}, {4, 8, 1, 1}, {1, 1}},
                           Case{{4, 4, 1, 1}, {4, 4, 1, 1}, {2, 3}}}) {
    PassNet net;
    const ValueId between = net.conv(net.input({2, each.first[1], 9, 8}), each.first, {{"strides", Ints{2, 1}}});
    net.output(net.conv(between, each.second, {{"strides", each.strides}}));
    EXPECT_EQ(joined(net), "Conv+Conv") << to_string(each.first);
  }
}

TEST(JoinConvolutions, KeepsABorderOfTheFirst) {
  PassNet net;
  const ValueId between = net.conv(net.input({2, 3, 5, 6}), {8, 3, 3, 3}, {{"pads", Ints{1, 1, 0, 2}}});
  net.output(net.conv(between, {4, 8, 1, 1}, {}, false));
  EXPECT_EQ(joined(net), "Conv+Conv");
}

TEST(JoinConvolutions, LeavesBottlenecksAndWhatIsNotOneAfterTheOther) {
  PassNet bottleneck;
  bottleneck.output(bottleneck.conv(bottleneck.conv(bottleneck.input({1, 16, 4, 4}), {4, 16, 1, 1}), {16, 4, 1, 1}));
  EXPECT_EQ(joined(bottleneck), "Conv Conv");
  PassNet padded;  // the second's border is zero, not the first's bias
  padded.output(
      padded.conv(padded.conv(padded.input({1, 4, 4, 4}), {16, 4, 1, 1}), {4, 16, 1, 1}, {{"pads", Ints{1, 1, 1, 1}}}));
  EXPECT_EQ(joined(padded), "Conv Conv");
  PassNet grouped;
  grouped.output(
      grouped.conv(grouped.conv(grouped.input({1, 4, 4, 4}), {16, 4, 1, 1}), {4, 8, 1, 1}, {{"group", int64_t{2}}}));
  EXPECT_EQ(joined(grouped), "Conv Conv");
  PassNet window;
  window.output(window.conv(window.conv(window.input({1, 4, 4, 4}), {64, 4, 1, 1}), {4, 64, 3, 3}));
  EXPECT_EQ(joined(window), "Conv Conv");
  PassNet shared;
  const ValueId between = shared.conv(shared.input({1, 4, 4, 4}), {16, 4, 1, 1});
  shared.output(shared.conv(between, {4, 16, 1, 1}));
  shared.output(between);
  EXPECT_EQ(joined(shared), "Conv Conv");
  PassNet active;
  active.output(
      active.conv(active.op("Relu", {active.conv(active.input({1, 4, 4, 4}), {16, 4, 1, 1})}), {4, 16, 1, 1}));
  EXPECT_EQ(joined(active), "Conv Relu Conv");
}

TEST(JoinConvolutions, LeavesAFastConvolutionUnderAStride) {
  PassNet net;
  net.output(net.conv(net.conv(net.input({1, 8, 8, 8}), {8, 8, 3, 3}), {8, 8, 1, 1}, {{"strides", Ints{2, 2}}}));
  EXPECT_EQ(joined(net), "Conv Conv");
}

// ---- pull-strides

std::string pulled(PassNet& net) { return ops_of(rewritten(net, {passes::pull_strides})); }

struct Residual {
  PassNet net;
  ValueId x, sum;
  explicit Residual(int64_t kernel = 1) {
    x = net.input({2, 4, 7, 6});
    const int64_t pad = kernel / 2;
    sum =
        net.op("Add", {net.conv(net.op("Relu", {x}), {4, 4, kernel, kernel}, {{"pads", Ints{pad, pad, pad, pad}}}), x});
    sum = net.op("Relu", {sum});
  }
  void read(Ints strides, int64_t kernel = 1) {
    net.output(net.conv(sum, {5, 4, kernel, kernel}, {{"strides", std::move(strides)}}));
  }
};

TEST(PullStrides, SkipsPixelsThatNobodyReads) {
  Residual block;
  block.read({2, 2});
  block.read({2, 2});
  EXPECT_EQ(pulled(block.net), "Relu Conv MaxPool Add Relu Conv Conv");
  PassNet wide;
  const ValueId gated = wide.op(
      "Mul", {wide.conv(wide.input({1, 4, 9, 9}), {6, 4, 1, 1}, {{"strides", Ints{1, 2}}}), wide.weights({6, 1, 1})});
  wide.output(wide.conv(gated, {5, 6, 1, 1}, {{"strides", Ints{3, 1}}}));
  const Graph after = rewritten(wide, {passes::pull_strides});
  EXPECT_EQ(after.node(after.order()[0]).attributes.get_ints("strides"), (Ints{3, 2}));
}

TEST(PullStrides, LeavesWhatSomeReaderNeeds) {
  Residual other, whole, window, output;
  other.read({2, 2});
  other.read({1, 2});
  EXPECT_EQ(pulled(other.net), "Relu Conv Add Relu Conv Conv");
  whole.read({2, 2});
  whole.net.output(whole.net.op("GlobalAveragePool", {whole.sum}));
  EXPECT_EQ(pulled(whole.net), "Relu Conv Add Relu Conv GlobalAveragePool");
  window.read({2, 2}, 3);
  EXPECT_EQ(pulled(window.net), "Relu Conv Add Relu Conv");
  output.read({2, 2});
  output.net.output(output.sum);
  EXPECT_EQ(pulled(output.net), "Relu Conv Add Relu Conv");
}

TEST(PullStrides, LeavesDenseWindowsToTheirFastAlgorithms) {
  Residual block(3);
  block.read({2, 2});
  EXPECT_EQ(pulled(block.net), "Relu Conv Add Relu Conv");
}

TEST(PullStrides, LeavesOperandsThatSpreadOverRows) {
  PassNet net;
  const ValueId x = net.conv(net.input({1, 4, 6, 6}), {4, 4, 1, 1});
  net.output(net.conv(net.op("Add", {x, net.weights({6, 1})}), {5, 4, 1, 1}, {{"strides", Ints{2, 2}}}));
  EXPECT_EQ(pulled(net), "Conv Add Conv");
}

}  // namespace
}  // namespace lathe
