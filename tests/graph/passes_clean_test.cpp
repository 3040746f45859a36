// Folding, cleaning and merging.
#include <gtest/gtest.h>

#include "graph/text.h"
#include "tests/graph/pass_ops.h"

namespace lathe {
namespace {

using testing::attributes;
using testing::Net;
using testing::ops_of;
using testing::run_and_compare;
using testing::symbolic;

TEST(FoldConstants, ComputesWhatDependsOnConstantsOnly) {
  Net net;
  const ValueId weights =
      net.op("Transpose", {net.weights({80, 70})}, attributes({{"perm", std::vector<int64_t>{1, 0}}}));
  net.output(net.op("MatMul", {net.input("x", Dims{2, 70}), weights}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fold_constants, true)), "MatMul");
}

TEST(FoldConstants, KeepsChanceAndInputs) {
  Net net;
  net.output(net.op("Relu", {net.op("RandomUniformLike", {net.constant({1, 2})})}));
  net.output(net.op("Relu", {net.input("x", Dims{2})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fold_constants, false)), "RandomUniformLike Relu Relu");
}

TEST(FoldConstants, DoesNotExceedTheLimit) {
  Net net;
  net.output(net.op("Relu", {net.weights({100, 100})}));
  Limits limits;
  limits.folded_bytes = 1000;
  infer_types(net.graph);
  EXPECT_FALSE(passes::fold_constants(net.graph, {testing::pass_ops(), limits, 8}));
}

TEST(RemoveDead, TakesWhatNobodyReads) {
  Net net;
  const ValueId x = net.input("x", Dims{3});
  net.op("Sqrt", {net.op("Relu", {x})});
  net.output(net.op("Sigmoid", {x}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::remove_dead, true)), "Sigmoid");
}

TEST(RemoveDead, KeepsOutputsOfTheGraph) {
  Net net;
  const ValueId y = net.op("Relu", {net.input("x", Dims{3})});
  net.output(y);
  net.output(net.op("Sigmoid", {y}));
  run_and_compare(net.graph, passes::remove_dead, false);
}

TEST(RemoveIdentities, TakesNodesThatChangeNothing) {
  Net net;
  const ValueId x = net.input("x", Dims{2, 3});
  ValueId y = net.op("Identity", {x});
  y = net.op("Dropout", {y});
  y = net.op("Cast", {y}, attributes({{"to", int64_t{1}}}));
  y = net.op("Concat", {y}, attributes({{"axis", int64_t{0}}}));
  y = net.op("Transpose", {y}, attributes({{"perm", std::vector<int64_t>{0, 1}}}));
  y = net.op("Reshape", {y, net.integers({2, 3})});
  y = net.op("Mul", {net.scalar(1), y});
  y = net.op("Sub", {y, net.scalar(0)});
  net.output(net.op("Relu", {y}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::remove_identities, true)), "Relu");
}

TEST(RemoveIdentities, KeepsNearMisses) {
  Net net;
  const ValueId x = net.input("x", Dims{2, 3});
  net.output(net.op("Cast", {x}, attributes({{"to", int64_t{7}}})));
  net.output(net.op("Transpose", {x}, attributes({{"perm", std::vector<int64_t>{1, 0}}})));
  net.output(net.op("Reshape", {x, net.integers({3, 2})}));
  net.output(net.op("Mul", {x, net.constant(Tensor::from<float>({1, 1, 1}, {1.f}))}));  // raises the rank
  net.output(net.op("Sub", {net.scalar(0), x}));
  net.output(net.op("Dropout", {x, net.scalar(0.5f), net.constant(Tensor::scalar<bool>(true))}));
  run_and_compare(net.graph, passes::remove_identities, false);
}

TEST(RemoveIdentities, KeepsTheNameOfAnOutput) {
  Net net;
  const ValueId y = net.op("Identity", {net.op("Relu", {net.input("x", Dims{3})})});
  net.output(y);
  const std::string name = net.graph.value(y).name;
  const Graph after = run_and_compare(net.graph, passes::remove_identities, true);
  EXPECT_EQ(ops_of(after), "Relu");
  EXPECT_EQ(after.value(after.outputs[0]).name, name);
}

TEST(RemoveIdentities, KeepsAnIdentityFromInputToOutput) {
  Net net;
  net.output(net.op("Identity", {net.input("x", Dims{3})}));
  run_and_compare(net.graph, passes::remove_identities, false);
}

TEST(RemoveIdentities, KeepsBothOutputsWhenOneIsTheIdentityOfTheOther) {
  Net net;
  const ValueId y = net.op("Relu", {net.input("x", Dims{3})});
  net.output(y);
  net.output(net.op("Identity", {y}));
  run_and_compare(net.graph, passes::remove_identities, false);
}

TEST(RemoveIdentities, MergesChainsOfTransposesAndReshapes) {
  Net net;
  ValueId y =
      net.op("Transpose", {net.input("x", Dims{2, 3, 4})}, attributes({{"perm", std::vector<int64_t>{1, 0, 2}}}));
  y = net.op("Transpose", {y}, attributes({{"perm", std::vector<int64_t>{2, 1, 0}}}));
  y = net.op("Reshape", {y, net.integers({8, 3})});
  y = net.op("Unsqueeze", {y, net.integers({0})});
  y = net.op("Reshape", {y, net.integers({0, 4, -1})});
  net.output(net.op("Relu", {y}));
  Graph after = run_and_compare(net.graph, passes::remove_identities, true);
  passes::remove_dead(after, testing::pass_context());
  EXPECT_EQ(ops_of(after), "Transpose Reshape Relu");
}

TEST(RemoveIdentities, UndoesUnsqueezeBySqueezeOverSymbols) {
  Net net;
  ValueId y = net.op("Unsqueeze", {net.input("x", symbolic({"n", "m"})), net.integers({1})});
  y = net.op("Squeeze", {y, net.integers({1})});
  net.output(net.op("Relu", {y}));
  Graph after = run_and_compare(net.graph, passes::remove_identities, true);
  passes::remove_dead(after, testing::pass_context());
  EXPECT_EQ(ops_of(after), "Relu");
}

TEST(MergeCommon, MergesEqualNodesOverEqualConstants) {
  Net net;
  const ValueId x = net.input("x", Dims{3});
  const ValueId a = net.op("Mul", {x, net.scalar(2)}), b = net.op("Mul", {x, net.scalar(2)});
  net.output(net.op("Sub", {a, b}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::merge_common, true)), "Mul Sub");
}

TEST(MergeCommon, MergesProductsWithEqualWeights) {
  Net net;
  const ValueId x = net.input("x", Dims{2, 64});
  const Tensor weights = testing::noise({64, 64}, 3), same = testing::noise({64, 64}, 3);
  const ValueId a = net.op("MatMul", {x, net.constant(weights)}), b = net.op("MatMul", {x, net.constant(same)});
  net.output(net.op("Sub", {a, b}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::merge_common, true)), "MatMul Sub");
}

TEST(MergeCommon, KeepsWeightsThatDifferAnywhere) {
  for (const int64_t place : {0, 5, 777, 2048, 3333, 4095}) {
    Net net;
    const ValueId x = net.input("x", Dims{2, 64});
    const Tensor weights = testing::noise({64, 64}, 3);
    Tensor other = testing::noise({64, 64}, 3);
    other.mutable_data<float>()[place] += 1;
    const ValueId a = net.op("MatMul", {x, net.constant(weights)}), b = net.op("MatMul", {x, net.constant(other)});
    net.output(net.op("Sub", {a, b}));
    run_and_compare(net.graph, passes::merge_common, false);
  }
}

TEST(MergeCommon, KeepsDifferentAttributesConstantsAndChance) {
  Net net;
  const ValueId x = net.input("x", Dims{3, 3});
  const auto transposed = [&](std::vector<int64_t> perm) {
    return net.op("Transpose", {x}, attributes({{"perm", perm}}));
  };
  net.output(net.op("Add", {transposed({0, 1}), transposed({1, 0})}));
  net.output(net.op("Add", {net.op("Mul", {x, net.scalar(2)}), net.op("Mul", {x, net.scalar(3)})}));
  net.output(net.op("Sub", {net.op("RandomUniformLike", {x}), net.op("RandomUniformLike", {x})}));
  run_and_compare(net.graph, passes::merge_common, false);
}

std::shared_ptr<const Graph> branch(const char* op) {
  Net body;
  const ValueId captured = body.input("captured", TensorType{});
  body.output(body.op(op, {captured}));
  return std::make_shared<const Graph>(body.graph);
}

ValueId add_if(Net& net, ValueId condition, ValueId captured) {
  const ValueId y = net.op("If", {condition, captured},
                           attributes({{"then_branch", branch("Relu")}, {"else_branch", branch("Sigmoid")}}));
  net.graph.node(net.graph.order().back()).captures = 1;
  return y;
}

TEST(FoldIf, InlinesTheTakenBranch) {
  Net net;
  const ValueId x = net.input("x", Dims{3});
  net.output(net.op("Sqrt", {net.op("Relu", {add_if(net, net.constant(Tensor::scalar<bool>(false)), x)})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fold_if, true)), "Sigmoid Relu Sqrt");
}

TEST(FoldIf, KeepsTheNameOfAnOutput) {
  Net net;
  const ValueId y = add_if(net, net.constant(Tensor::scalar<bool>(true)), net.input("x", Dims{3}));
  net.output(y);
  const Graph after = run_and_compare(net.graph, passes::fold_if, true);
  EXPECT_EQ(ops_of(after), "Relu Identity");
  EXPECT_EQ(after.outputs[0], y);
}

TEST(FoldIf, KeepsAnOpenCondition) {
  Net net;
  net.output(add_if(net, net.input("condition", TensorType::of(DType::boolean, {})), net.input("x", Dims{3})));
  run_and_compare(net.graph, passes::fold_if, false);
}

TEST(SinkConstants, MovesCapturedConstantsIntoBodies) {
  Net net;
  net.output(add_if(net, net.input("condition", TensorType::of(DType::boolean, {})), net.constant({-1, 2})));
  const Graph after = run_and_compare(net.graph, passes::sink_constants, true);
  const Node& node = after.node(after.order()[0]);
  EXPECT_EQ(node.captures, 0);
  EXPECT_EQ(node.inputs.size(), 1u);
  EXPECT_TRUE(node.attributes.get_graph("then_branch")->inputs.empty());
}

TEST(SinkConstants, LeavesOtherCaptures) {
  Net net;
  const ValueId x = net.input("x", Dims{2});
  net.output(add_if(net, net.input("condition", TensorType::of(DType::boolean, {})), x));
  run_and_compare(net.graph, passes::sink_constants, false);
}

}  // namespace
}  // namespace lathe
