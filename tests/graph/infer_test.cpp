#include "graph/infer.h"

#include <gtest/gtest.h>

#include "graph/text.h"
#include "lathe/error.h"
#include "tests/graph/pass_ops.h"

namespace lathe {
namespace {

using testing::attributes;
using testing::Net;
using testing::symbolic;

// x -> [rows, columns] taken apart and put together again, as exporters spell a flatten.
ValueId flatten_by_shape_arithmetic(Net& net, ValueId x) {
  const ValueId shape = net.op("Shape", {x});
  const ValueId rows = net.op("Gather", {shape, net.integers({0})});
  const ValueId product =
      net.op("Mul", {net.op("Gather", {shape, net.integers({1})}), net.op("Gather", {shape, net.integers({2})})});
  return net.op("Reshape", {x, net.op("Concat", {rows, product}, attributes({{"axis", int64_t{0}}}))});
}

TEST(InferTypes, ResolvesShapeArithmeticOverStaticExtents) {
  Net net;
  const ValueId y = flatten_by_shape_arithmetic(net, net.input("x", Dims{2, 3, 5}));
  net.output(y);
  infer_types(net.graph);
  EXPECT_EQ(to_string(net.graph.value(y).type), "float32[2,15]");
  EXPECT_EQ(testing::ops_of(net.graph), "Reshape");
}

TEST(InferTypes, KeepsShapeArithmeticOverUnknownExtents) {
  Net net;
  const ValueId y = flatten_by_shape_arithmetic(net, net.input("x", symbolic({"n", "3", "5"})));
  net.output(y);
  infer_types(net.graph);
  EXPECT_TRUE(net.graph.value(y).type.has_rank);
  EXPECT_EQ(net.graph.value(y).type.rank(), 2);
  EXPECT_EQ(testing::count_of(net.graph, "Shape"), 1);
}

TEST(InferTypes, FoldsTheKnownPartOfAnOpenShape) {
  Net net;
  const ValueId x = net.input("x", symbolic({"n", "3", "5"}));
  const ValueId tail = net.op("Shape", {x}, attributes({{"start", int64_t{1}}}));
  net.output(tail);
  infer_types(net.graph);
  ASSERT_TRUE(net.graph.value(tail).is_constant());
  EXPECT_EQ(net.graph.value(tail).constant.data<int64_t>()[1], 5);
}

TEST(InferTypes, FindsTheSameGraphAgainWhenExtentsBecomeKnown) {
  Net net;
  const ValueId x = net.input("x", symbolic({"n", "3", "5"}));
  const ValueId y = flatten_by_shape_arithmetic(net, x);
  net.output(y);
  infer_types(net.graph);
  net.graph.value(x).type = TensorType::of(DType::f32, {7, 3, 5});
  infer_types(net.graph);
  EXPECT_EQ(to_string(net.graph.value(y).type), "float32[7,15]");
}

TEST(InferTypes, DropsADeclaredShapeThatTheOperatorContradicts) {
  Net net;
  const ValueId y = net.op("Relu", {net.input("x", Dims{2, 3})});
  net.graph.value(y).type = TensorType::of(DType::f32, {9});
  net.output(y);
  infer_types(net.graph);
  EXPECT_EQ(to_string(net.graph.value(y).type), "float32[2,3]");
}

TEST(InferTypes, RejectsADeclaredElementTypeThatTheOperatorContradicts) {
  Net net;
  const ValueId y = net.op("Relu", {net.input("x", Dims{2, 3})});
  net.graph.value(y).type = TensorType::of(DType::i64, {2, 3});
  net.output(y);
  EXPECT_THROW(infer_types(net.graph), Error);
}

TEST(InferTypes, LeavesAConstantNodeWithBadDataForTheRun) {
  Net net;
  const ValueId y = net.op("Gather", {net.integers({1, 2}), net.integers({9})});
  net.output(y);
  infer_types(net.graph);
  EXPECT_EQ(testing::ops_of(net.graph), "Gather");
}

TEST(InferTypes, NeverFoldsChance) {
  Net net;
  net.output(net.op("RandomUniformLike", {net.constant({1, 2})}));
  infer_types(net.graph);
  EXPECT_EQ(testing::ops_of(net.graph), "RandomUniformLike");
}

TEST(InferTypes, KnowsWhatABodyGivesForItsCaptures) {
  Net body;
  const ValueId captured = body.input("outer", TensorType{});
  body.output(body.op("Relu", {captured}));
  const auto branch = std::make_shared<const Graph>(body.graph);
  Net net;
  const ValueId condition = net.input("condition", TensorType::of(DType::boolean, {}));
  const ValueId x = net.input("x", Dims{4, 2});
  const ValueId y = net.op("If", {condition, x}, attributes({{"then_branch", branch}, {"else_branch", branch}}));
  net.graph.node(net.graph.order()[0]).captures = 1;
  net.output(y);
  infer_types(net.graph);
  EXPECT_EQ(to_string(net.graph.value(y).type), "float32[4,2]");
}

TEST(InferTypes, ToleratesABranchThatContradictsItself) {
  Net wrong;
  const ValueId captured = wrong.input("outer", TensorType{});
  const ValueId y = wrong.op("Relu", {captured});
  wrong.graph.value(y).type.dtype = DType::i64;  // contradicts what Relu gives
  wrong.output(y);
  Net right;
  right.output(right.op("Relu", {right.input("outer", TensorType{})}));
  Net net;
  const ValueId condition = net.input("condition", TensorType::of(DType::boolean, {}));
  net.output(net.op("If", {condition, net.input("x", Dims{4, 2})},
                    attributes({{"then_branch", std::make_shared<const Graph>(right.graph)},
                                {"else_branch", std::make_shared<const Graph>(wrong.graph)}})));
  net.graph.node(net.graph.order()[0]).captures = 1;
  EXPECT_NO_THROW(infer_types(net.graph));
  EXPECT_NO_THROW(run_passes(net.graph, load_passes(), testing::pass_context(), 99, {}));
}

TEST(RunReference, AppliesAnEpilogueWithBroadcasting) {
  Net net;
  const ValueId y = net.op("Relu", {net.input("x", Dims{2, 2})});
  net.output(y);
  Node& node = net.graph.node(net.graph.order()[0]);
  Expression sum{{{.op = ExprOp::input, .a = 0}, {.op = ExprOp::input, .a = 1}, {.op = ExprOp::add, .a = 0, .b = 1}},
                 {DType::f32, DType::f32}};
  node.inputs.push_back(net.constant({10, 20}));
  node.epilogue = Epilogue{sum, 1};
  const Tensor x = Tensor::from<float>({2, 2}, {-1, 2, 3, -4});
  const Tensor result = run_reference_graph(net.graph, std::vector<Tensor>{x})[0];
  EXPECT_EQ(std::vector<float>(result.data<float>(), result.data<float>() + 4), (std::vector<float>{10, 22, 13, 20}));
}

}  // namespace
}  // namespace lathe
