// Sums of convolutions over one value: where they become one, and near misses.
#include <limits>

#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

struct Block {
  PassNet net;
  ValueId x;

  explicit Block(const Dims& dims = {2, 4, 9, 8}) { x = net.op("Relu", {net.input(dims)}); }
  // A square window in the middle of its pads.
  ValueId conv(int64_t outputs, int64_t size, int64_t groups = 1, int64_t stride = 1, int64_t dilation = 1) {
    const int64_t pad = size / 2 * dilation;
    return net.conv(x, {outputs, 4 / groups, size, size},
                    {{"pads", Ints{pad, pad, pad, pad}},
                     {"strides", Ints{stride, stride}},
                     {"dilations", Ints{dilation, dilation}},
                     {"group", groups}});
  }
  ValueId per_channel(const char* op, ValueId a, int64_t channels = 4) {
    return net.op(op, {a, net.weights({channels, 1, 1}, 0.5f, 1.5f)});
  }
  ValueId add(ValueId a, ValueId b) { return net.op("Add", {a, b}); }
  std::string summed(ValueId result) {
    net.output(result);
    return ops_of(rewritten(net, {passes::sum_convolutions}));
  }
};

TEST(SumConvolutions, PutsSmallWindowsIntoTheMiddleOfLargeOnes) {
  for (const int64_t groups : {1, 2, 4}) {
    for (const int64_t stride : {1, 2}) {
      Block block;
      const ValueId large = block.conv(8, 5, groups, stride), small = block.conv(8, 3, groups, stride),
                    pixel = block.conv(8, 1, groups, stride);
      EXPECT_EQ(block.summed(block.add(pixel, block.add(large, small))), "Relu Conv+Conv+Conv") << groups;
    }
  }
}

TEST(SumConvolutions, TakesTheValueItselfAndItsFactors) {
  Block block;
  const ValueId scaled = block.per_channel("Add", block.per_channel("Mul", block.x));
  const ValueId sum = block.add(block.add(block.conv(4, 3), block.conv(4, 1)), scaled);
  EXPECT_EQ(block.summed(block.add(sum, block.x)), "Relu Conv+Conv+Identity+Identity");
}

// A mixer as FastViT has it: x + c * (convolutions - norm(x)).
TEST(SumConvolutions, SeesThroughDifferencesAndFactorsOfSums) {
  Block block;
  const ValueId convolved = block.add(block.conv(4, 1, 4), block.conv(4, 3, 4));
  const ValueId norm = block.per_channel("Add", block.per_channel("Mul", block.x));
  const ValueId mixed = block.per_channel("Mul", block.net.op("Sub", {convolved, norm}));
  EXPECT_EQ(block.summed(block.add(block.x, mixed)), "Relu Identity+Conv+Conv+Identity");
}

TEST(SumConvolutions, TakesNarrowGroupsIntoWideOnes) {
  Block inside, beside;
  EXPECT_EQ(inside.summed(inside.add(inside.conv(4, 3), inside.conv(4, 3, 4))), "Relu Conv+Conv");
  // 3x3 in one group would be more to compute than both.
  EXPECT_EQ(beside.summed(beside.add(beside.conv(4, 1), beside.conv(4, 3, 4))), "Relu Conv Conv Add");
}

TEST(SumConvolutions, KeepsWhatElseIsAdded) {
  Block block;
  const ValueId other = block.net.input(Dims{2, 4, 9, 8}), spread = block.net.input(Dims{4, 1, 1});
  const ValueId sum = block.net.op("Sub", {block.add(block.conv(4, 3), other), block.conv(4, 1)});
  EXPECT_EQ(block.summed(block.net.op("Sub", {spread, sum})), "Relu Conv+Conv Add Sub");
}

TEST(SumConvolutions, JoinsWindowsThatCrossInsideALargerOne) {
  Block block, crossed;
  const auto line = [](Block& in, int64_t rows, int64_t columns) {
    return in.net.conv(in.x, {4, 4, rows, columns}, {{"pads", Ints{rows / 2, columns / 2, rows / 2, columns / 2}}});
  };
  EXPECT_EQ(block.summed(block.add(block.add(line(block, 1, 3), line(block, 3, 1)), block.conv(4, 3))),
            "Relu Conv+Conv+Conv");
  EXPECT_EQ(crossed.summed(crossed.add(line(crossed, 1, 3), line(crossed, 3, 1))), "Relu Conv Conv Add");
}

TEST(SumConvolutions, TakesDilatedWindowsAndPadsThatFollowFromTheWindow) {
  Block dilated, automatic;
  EXPECT_EQ(dilated.summed(dilated.add(dilated.conv(4, 3, 1, 1, 2), dilated.conv(4, 1))), "Relu Conv+Conv");
  const ValueId same = automatic.net.conv(automatic.x, {4, 4, 4, 3}, {{"auto_pad", std::string("SAME_LOWER")}});
  EXPECT_EQ(automatic.summed(automatic.add(same, automatic.conv(4, 1))), "Relu Conv+Conv");
}

TEST(SumConvolutions, LinesAndVolumes) {
  Block line({2, 4, 11}), volume({1, 4, 4, 5, 6});
  const ValueId three = line.net.conv(line.x, {4, 4, 3}, {{"pads", Ints{1, 1}}}),
                one = line.net.conv(line.x, {4, 4, 1});
  EXPECT_EQ(line.summed(line.add(three, one)), "Relu Conv+Conv");
  const ValueId cube = volume.net.conv(volume.x, {4, 4, 3, 1, 3}, {{"pads", Ints{1, 0, 1, 1, 0, 1}}});
  EXPECT_EQ(volume.summed(volume.add(cube, volume.net.conv(volume.x, {4, 4, 1, 1, 1}))), "Relu Conv+Conv");
}

TEST(SumConvolutions, LeavesOtherValuesStridesWindowsAndDilations) {
  Block values, strides, corners, dilations;
  const ValueId other = values.net.conv(values.net.input({2, 4, 9, 8}), {4, 4, 1, 1});
  EXPECT_EQ(values.summed(values.add(values.conv(4, 3), other)), "Relu Conv Conv Add");
  // Equal extents from different strides, on one row.
  const ValueId a = strides.net.conv(strides.net.input({1, 4, 1, 8}), {4, 4, 1, 1}, {{"strides", Ints{2, 1}}});
  strides.x = strides.net.graph.node(strides.net.graph.value(a).producer).inputs[0];
  EXPECT_EQ(strides.summed(strides.add(a, strides.conv(4, 1))), "Relu Conv Conv Add");
  // One window begins where the other ends: joint, it would be larger than both.
  const auto corner = [&](int64_t before) {
    return corners.net.conv(corners.x, {4, 4, 3, 3}, {{"pads", Ints{before, before, 2 - before, 2 - before}}});
  };
  EXPECT_EQ(corners.summed(corners.add(corner(0), corner(2))), "Relu Conv Conv Add");
  EXPECT_EQ(dilations.summed(dilations.add(dilations.conv(4, 3, 1, 1, 2), dilations.conv(4, 3))), "Relu Conv Conv Add");
}

TEST(SumConvolutions, LeavesResultsThatOthersReadAndSumsOfTheValueAlone) {
  Block read, output, alone;
  const ValueId shared = read.conv(4, 3);
  read.net.output(read.net.op("Relu", {shared}));
  EXPECT_EQ(read.summed(read.add(shared, read.conv(4, 1))), "Relu Conv Relu Conv Add");
  const ValueId wanted = output.conv(4, 3);
  output.net.output(wanted);
  EXPECT_EQ(output.summed(output.add(wanted, output.conv(4, 1))), "Relu Conv Conv Add");
  EXPECT_EQ(alone.summed(alone.add(alone.per_channel("Mul", alone.x), alone.x)), "Relu Mul Add");
}

TEST(SumConvolutions, TakesLongChainsInParts) {
  Block block({1, 4, 1, 1});
  ValueId sum = block.x;
  for (int i = 0; i < 30000; ++i) sum = block.add(sum, block.net.op("Relu", {block.x}));
  block.net.output(sum);
  Graph graph = block.net.graph;
  infer_types(graph);
  const Limits limits;
  EXPECT_FALSE(passes::sum_convolutions(graph, {OpRegistry::builtin(), limits, 8}));
}

TEST(SumConvolutions, LeavesOneChannelThatSpreadsOverMany) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 1, 5, 5});
  net.output(net.op("Add", {net.conv(x, {4, 1, 1, 1}), x}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sum_convolutions})), "Conv Add");
}

TEST(SumConvolutions, LeavesWeightsWhoseSumOverflows) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 1, 2, 2});
  Tensor large(DType::f32, {1, 1, 1, 1});
  *large.mutable_data<float>() = std::numeric_limits<float>::max();
  net.output(net.op("Add", {net.op("Conv", {x, net.constant(large)}), net.op("Conv", {x, net.constant(large)})}));
  Graph graph = net.graph;
  infer_types(graph);
  const Limits limits;
  EXPECT_FALSE(passes::sum_convolutions(graph, {OpRegistry::builtin(), limits, 8}));
}

}  // namespace
}  // namespace lathe
