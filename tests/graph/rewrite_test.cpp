#include "graph/passes/rewrite.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lathe
