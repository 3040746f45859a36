#include <gtest/gtest.h>

#include "graph/text.h"
#include "tests/graph/pass_ops.h"

namespace lathe {
namespace {

using testing::attributes;
using testing::count_of;
using testing::Net;
using testing::ops_of;
using testing::run_and_compare;

ValueId conv(Net& net, ValueId x, int64_t inputs, int64_t outputs, int64_t group = 1) {
  return net.op("Conv", {x, net.weights({outputs, inputs / group, 1, 1})}, attributes({{"group", group}}));
}

// The layout of the first output of the node number `i` in order.
int block_of(const Graph& graph, size_t i) {
  return graph.value(graph.node(graph.order()[i]).outputs[0]).type.layout.channel_block;
}

TEST(ChooseLayouts, KeepsAChainBlockedFromAPlainPictureToAPlainOutput) {
  Net net;
  ValueId y = conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16);
  y = conv(net, net.op("Relu", {y}), 16, 16);
  net.output(y);
  const Graph after = run_and_compare(net.graph, passes::choose_layouts, true);
  EXPECT_EQ(ops_of(after), "Conv Relu Conv Reorder");
  EXPECT_EQ(after.value(after.node(after.order()[0]).inputs[0]).type.layout.channel_block, 0);
  EXPECT_EQ(block_of(after, 0), 8);
  EXPECT_EQ(block_of(after, 3), 0);
  EXPECT_EQ(after.outputs, net.graph.outputs);
}

TEST(ChooseLayouts, ReordersAnInputOnceForAllReaders) {
  Net net;
  const ValueId x = net.input("x", Dims{1, 16, 4, 4});
  net.output(net.op("Add", {conv(net, x, 16, 8), conv(net, x, 16, 8)}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::choose_layouts, true)), "Reorder Conv Conv Add Reorder");
}

TEST(ChooseLayouts, StaysBlockedThroughSqueezeAndExcitation) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16);
  ValueId scale = conv(net, net.op("GlobalAveragePool", {y}), 16, 8);
  scale = net.op("Sigmoid", {conv(net, net.op("Relu", {scale}), 8, 16)});
  net.output(net.op("Mul", {y, scale}));
  const Graph after = run_and_compare(net.graph, passes::choose_layouts, true);
  EXPECT_EQ(count_of(after, "Reorder"), 1);
}

TEST(ChooseLayouts, ConvertsTheLighterOperandOfASum) {
  Net net;
  const ValueId x = net.input("x", Dims{1, 16, 4, 4});
  const ValueId plain = conv(net, x, 16, 16, 2);  // grouped: does not run blocked here
  net.output(net.op("Relu", {net.op("Add", {net.op("Add", {conv(net, x, 16, 16), conv(net, x, 16, 16)}), plain})}));
  const Graph after = run_and_compare(net.graph, passes::choose_layouts, true);
  EXPECT_EQ(count_of(after, "Reorder"), 3);  // x, plain, the output
}

TEST(ChooseLayouts, JoinsPartsOfAnySize) {
  for (const int64_t first : {8, 12}) {
    Net net;
    const ValueId x = net.input("x", Dims{1, 16, 4, 4});
    const ValueId joined =
        net.op("Concat", {conv(net, x, 16, first), conv(net, x, 16, 4)}, attributes({{"axis", int64_t{1}}}));
    net.output(net.op("Relu", {joined}));
    const Graph after = run_and_compare(net.graph, passes::choose_layouts, true);
    EXPECT_EQ(count_of(after, "Reorder"), 2) << to_text(after);
  }
}

TEST(ChooseLayouts, TakesConstantsPerChannelAsTheyAre) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16);
  net.output(net.op("Mul", {net.op("Add", {y, net.weights({16, 1, 1})}), net.weights({1, 16, 1, 1})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::choose_layouts, true)), "Conv Add Mul Reorder");
}

TEST(ChooseLayouts, GoesBackToPlainForOperandsAlongTheWidth) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16);
  net.output(net.op("Relu", {net.op("Add", {y, net.weights({4})})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::choose_layouts, true)), "Conv Reorder Add Relu");
}

TEST(ChooseLayouts, GivesAResidualOfAnEpilogueTheLayoutOfTheResult) {
  Net net;
  const ValueId residual = net.input("r", Dims{1, 16, 4, 4});
  net.output(net.op("Relu", {net.op("Add", {conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16), residual})}));
  infer_types(net.graph);
  ASSERT_TRUE(passes::fuse_epilogue(net.graph, testing::pass_context()));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::choose_layouts, true)), "Reorder Conv+Add+Relu Reorder");
}

TEST(ChooseLayouts, LeavesAGraphWithoutConvolutionsAlone) {
  Net net;
  net.output(net.op("Relu", {net.input("x", Dims{1, 16, 4, 4})}));
  run_and_compare(net.graph, passes::choose_layouts, false);
}

TEST(Pipeline, RunsPassesByLevelAndName) {
  Net net;
  net.output(net.op("Relu", {net.op("Identity", {conv(net, net.input("x", Dims{1, 3, 4, 4}), 3, 16)})}));
  infer_types(net.graph);
  const auto ops_after = [&](int level, const std::vector<std::string>& disabled) {
    Graph graph = net.graph;
    run_passes(graph, load_passes(), testing::pass_context(), level, disabled);
    run_passes(graph, specialize_passes(), testing::pass_context(), level, disabled);
    return ops_of(graph);
  };
  EXPECT_EQ(ops_after(0, {}), "Conv Identity Relu");
  EXPECT_EQ(ops_after(1, {}), "Conv Relu");
  EXPECT_EQ(ops_after(2, {}), "Conv+Relu");
  EXPECT_EQ(ops_after(3, {}), "Conv+Relu Reorder");
  EXPECT_EQ(ops_after(99, {"fuse-epilogue", "choose-layouts"}), "Conv Relu");
}

int looks = 0, changes = 0;
bool looks_only(Graph&, const PassContext&) {
  ++looks;
  return false;
}
bool changes_once(Graph& graph, const PassContext&) {
  if (changes++ > 0) return false;
  graph.node(graph.order()[0]).fused_from = "Relu";
  return true;
}

TEST(Pipeline, RunsAPassAgainOnlyOnAGraphThatChanged) {
  Net net;
  net.output(net.op("Relu", {net.input("x", Dims{3})}));
  infer_types(net.graph);
  const auto looks_in = [&](const std::vector<Pass>& passes) {
    looks = changes = 0;
    Graph graph = net.graph;
    run_passes(graph, passes, testing::pass_context(), 99, {});
    return looks;
  };
  EXPECT_EQ(looks_in({{"looks", looks_only, 1}}), 1);
  EXPECT_EQ(looks_in({{"changes", changes_once, 2}, {"looks", looks_only, 2}}), 1);
  EXPECT_EQ(looks_in({{"looks", looks_only, 1}, {"changes", changes_once, 2}}), 2);
}

TEST(Pipeline, SettlesBodies) {
  Net body;
  const ValueId captured = body.input("captured", TensorType{});
  body.output(body.op("Relu", {body.op("Identity", {captured})}));
  const auto branch = std::make_shared<const Graph>(body.graph);
  Net net;
  const ValueId condition = net.input("condition", TensorType::of(DType::boolean, {}));
  const ValueId y = net.op("If", {condition, net.input("x", Dims{3})},
                           attributes({{"then_branch", branch}, {"else_branch", branch}}));
  net.graph.node(net.graph.order()[0]).captures = 1;
  net.output(y);
  infer_types(net.graph);
  run_passes(net.graph, load_passes(), testing::pass_context(), 99, {});
  EXPECT_EQ(ops_of(*net.graph.node(net.graph.order()[0]).attributes.get_graph("then_branch")), "Relu");
}

}  // namespace
}  // namespace lathe
