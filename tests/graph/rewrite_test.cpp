#include "graph/passes/rewrite.h"

#include <gtest/gtest.h>

#include "graph/passes/rearranger.h"
#include "tests/graph/pass_ops.h"

namespace lathe {
namespace {

TEST(Rewriter, NamesANodeThatTakesOverAnothersOutput) {
  testing::Net net;
  const ValueId x = net.input("x", Dims{2}), y = net.op("Relu", {x});
  net.output(y);
  Rewriter rewriter(net.graph);
  const NodeId old = net.graph.value(y).producer;
  std::vector<NodeId> made;
  for (int i = 0; i < 2; ++i) {
    Node node;
    node.op = &testing::pass_ops().require("", "Sigmoid", 17);
    node.version = 17;
    node.inputs = {x};
    node.outputs = {ValueId::none};
    made.push_back(rewriter.add(std::move(node), old));
  }
  EXPECT_FALSE(net.graph.node(made[0]).name.empty());
  EXPECT_NE(net.graph.node(made[0]).name, net.graph.node(made[1]).name);
  rewriter.erase(old);
  rewriter.erase(made[0]);
  rewriter.move_output(y, made[1]);
  EXPECT_TRUE(rewriter.finish());
  EXPECT_EQ(testing::ops_of(net.graph), "Sigmoid");
}

struct ReshapeCase {
  std::initializer_list<const char*> from;
  std::vector<int64_t> dims;
  std::initializer_list<const char*> to;
};

TEST(Rearranger, KnowsOfAReshapesResultWhatFollowsFromItsOperand) {
  const ReshapeCase cases[] = {
      {{"n", "8", "6"}, {0, 2, 4, 6}, {"n", "2", "4", "6"}},
      {{"2", "8", "6"}, {-1, 12}, {"8", "12"}},
      {{"n", "8", "3", "2"}, {0, 0, -1}, {"n", "8", "6"}},
      {{"n", "8", "6", "1"}, {-1, 8, 6}, {"n", "8", "6"}},     // n * 48 by 48
      {{"n", "8", "6"}, {-1, 6}, {"?", "6"}},                  // n * 8: has no name
      {{"n", "m", "6"}, {-1, 6}, {"?", "6"}},                  // nor has n * m
      {{"n", "?", "6"}, {0, 3, -1}, {"n", "3", "?"}},          // the rest of something unknown
      {{"n", "m", "6"}, {0, -1, 2, 3}, {"n", "m", "2", "3"}},  // m * 6 by 6
  };
  for (const ReshapeCase& each : cases) {
    testing::Net net;
    const ValueId x = net.input("x", testing::symbolic(each.from)), y = net.op("Relu", {x});
    Rewriter rewriter(net.graph);
    const ValueId made = Rearranger(rewriter, testing::pass_ops(), net.graph.value(y).producer).reshaped(x, each.dims);
    EXPECT_EQ(to_string(net.graph.value(made).type), to_string(testing::symbolic(each.to)));
  }
}

TEST(Rearranger, PutsWhatItMakesBeforeTheNodeThatReadsIt) {
  testing::Net net;
  const ValueId x = net.input("x", testing::symbolic({"n", "2", "3"})), y = net.op("Relu", {x}),
                z = net.op("Sigmoid", {y});
  net.output(z);
  Rewriter rewriter(net.graph);
  const NodeId relu = net.graph.value(y).producer;
  Rearranger rearranger(rewriter, testing::pass_ops(), relu);
  const ValueId turned = rearranger.transposed(x, {0, 2, 1});
  EXPECT_EQ(to_string(net.graph.value(turned).type), to_string(testing::symbolic({"n", "3", "2"})));
  rewriter.erase(relu);
  EXPECT_EQ(rearranger.transposed(turned, {0, 2, 1}, y), y);
  EXPECT_TRUE(rewriter.finish());
  EXPECT_EQ(testing::ops_of(net.graph), "Transpose Transpose Sigmoid");
}

}  // namespace
}  // namespace lathe
