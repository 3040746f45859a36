// Fusions: into weights, into LayerNormalization, into epilogues and pointwise groups.
#include <gtest/gtest.h>

#include "graph/text.h"
#include "tests/graph/pass_ops.h"

namespace lathe {
namespace {

using testing::attributes;
using testing::count_of;
using testing::Net;
using testing::ops_of;
using testing::run_all_and_compare;
using testing::run_and_compare;
using testing::symbolic;

ValueId positive(Net& net, int64_t count) {
  Tensor tensor = testing::noise({count}, 3);
  for (int64_t i = 0; i < count; ++i)
    tensor.mutable_data<float>()[i] = 0.5f + tensor.data<float>()[i] * tensor.data<float>()[i];
  return net.constant(tensor);
}

ValueId batch_norm(Net& net, ValueId x, int64_t channels) {
  return net.op("BatchNormalization", {x, net.weights({channels}), net.weights({channels}), net.weights({channels}),
                                       positive(net, channels)});
}

ValueId conv(Net& net, ValueId x, int64_t inputs, int64_t outputs, int64_t size = 1, int64_t group = 1) {
  const int64_t pad = size / 2;
  return net.op("Conv", {x, net.weights({outputs, inputs / group, size, size}), net.weights({outputs})},
                attributes({{"pads", std::vector<int64_t>{pad, pad, pad, pad}}, {"group", group}}));
}

TEST(FoldBatchNorm, GoesIntoAConvolution) {
  Net net;
  net.output(batch_norm(net, conv(net, net.input("x", Dims{1, 4, 5, 5}), 4, 6, 3, 2), 6));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fold_batch_norm, true)), "Conv+BatchNormalization");
}

TEST(FoldBatchNorm, TakesTheArithmeticPerChannelBehindIt) {
  Net net;
  ValueId y = batch_norm(net, conv(net, net.input("x", symbolic({"n", "4", "?", "?"})), 4, 6), 6);
  y = net.op("Mul", {y, net.weights({6, 1, 1})});
  y = net.op("Add", {net.weights({1, 6, 1, 1}), y});
  y = net.op("Sub", {net.scalar(2), y});
  y = net.op("Div", {y, net.constant({2})});
  net.output(net.op("Relu", {y}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fold_batch_norm, true)),
            "Conv+BatchNormalization+Mul+Add+Sub+Div Relu");
}

TEST(FoldBatchNorm, KeepsWhatOthersReadAndWhatIsNotPerChannel) {
  Net net;
  const ValueId x = net.input("x", Dims{1, 4, 4, 4});
  const ValueId shared = conv(net, x, 4, 4);
  net.output(shared);
  net.output(net.op("Mul", {shared, net.weights({4, 1, 1})}));
  net.output(net.op("Mul", {conv(net, x, 4, 4), net.weights({4})}));           // along the width
  net.output(net.op("Mul", {conv(net, x, 4, 4), net.weights({1, 1, 4, 1})}));  // along the height
  net.output(net.op("Add", {conv(net, x, 4, 4), net.constant(Tensor::from<float>({1, 1, 1, 1, 1}, {1.f}))}));
  net.output(net.op("Div", {net.scalar(1), conv(net, x, 4, 4)}));
  run_and_compare(net.graph, passes::fold_batch_norm, false);
}

TEST(FoldBatchNorm, LeavesTrainingAlone) {
  Net net;
  const ValueId x = conv(net, net.input("x", Dims{1, 4, 4, 4}), 4, 4);
  net.output(net.op("BatchNormalization", {x, net.weights({4}), net.weights({4}), net.weights({4}), positive(net, 4)},
                    attributes({{"training_mode", int64_t{1}}})));
  run_and_compare(net.graph, passes::fold_batch_norm, false);
}

TEST(FoldBatchNorm, BecomesOneProductAndOneSumWhereThereAreNoWeights) {
  Net net;
  ValueId y = batch_norm(net, net.input("x", Dims{2, 4, 3, 3}), 4);
  y = net.op("Mul", {y, net.weights({4, 1, 1})});
  y = net.op("Add", {y, net.weights({4, 1, 1})});
  net.output(y);
  const Graph after = run_and_compare(net.graph, passes::fold_batch_norm, true);
  EXPECT_EQ(after.order().size(), 2u);
  EXPECT_EQ(count_of(after, "Mul"), 1);
}

struct NormSpelling {
  bool squares_by_pow = true, has_gain = true, has_bias = true, subtracts_twice = false;
};

ValueId layer_norm(Net& net, ValueId x, int64_t columns, NormSpelling spelling, int64_t axis = -1) {
  const auto mean = [&](ValueId v) {
    return net.op("ReduceMean", {v}, attributes({{"axes", std::vector<int64_t>{axis}}, {"keepdims", int64_t{1}}}));
  };
  const ValueId average = mean(x), d = net.op("Sub", {x, average});
  const ValueId inner = spelling.subtracts_twice ? net.op("Sub", {x, average}) : d;
  const ValueId squares =
      spelling.squares_by_pow ? net.op("Pow", {inner, net.scalar(2)}) : net.op("Mul", {inner, inner});
  const ValueId root = net.op("Sqrt", {net.op("Add", {mean(squares), net.constant({1e-3f})})});
  ValueId y = net.op("Div", {d, root});
  if (spelling.has_gain) y = net.op("Mul", {y, net.weights({columns})});
  if (spelling.has_bias) y = net.op("Add", {y, net.weights({columns})});
  return y;
}

TEST(FuseLayerNorm, KnowsItsSpellings) {
  for (const bool by_pow : {true, false}) {
    for (const bool twice : {true, false}) {
      for (const bool gain : {true, false}) {
        Net net;
        const ValueId x = net.input("x", symbolic({"n", "?", "8"}));
        net.output(layer_norm(net, net.op("Relu", {x}), 8, {by_pow, gain, gain, twice}));
        Graph after = run_all_and_compare(net.graph, {passes::fuse_layer_norm, passes::remove_dead});
        EXPECT_EQ(ops_of(after), "Relu LayerNormalization");
      }
    }
  }
}

TEST(FuseLayerNorm, LeavesABiasThatIsNoRow) {
  Net net;
  const ValueId y = layer_norm(net, net.input("x", Dims{2, 3, 8}), 8, {.has_bias = false});
  net.output(net.op("Add", {y, net.weights({3, 8})}));
  const Graph after = run_all_and_compare(net.graph, {passes::fuse_layer_norm, passes::remove_dead});
  EXPECT_EQ(ops_of(after), "LayerNormalization Add");
}

TEST(FuseLayerNorm, IsNotFooledByAnotherExponent) {
  Net net;
  const ValueId x = net.input("x", Dims{2, 8});
  const auto mean = [&](ValueId v) {
    return net.op("ReduceMean", {v}, attributes({{"axes", std::vector<int64_t>{-1}}}));
  };
  const ValueId d = net.op("Sub", {x, mean(x)});
  const ValueId root = net.op("Sqrt", {net.op("Add", {mean(net.op("Pow", {d, net.scalar(4)})), net.scalar(1)})});
  net.output(net.op("Div", {d, root}));
  run_and_compare(net.graph, passes::fuse_layer_norm, false);
}

// gelu(x) = x * (1 + erf(x / sqrt(2))) * 0.5: reads x twice.
ValueId gelu(Net& net, ValueId x) {
  const ValueId e = net.op("Erf", {net.op("Div", {x, net.constant({1.41421356f})})});
  return net.op("Mul", {net.op("Mul", {x, net.op("Add", {e, net.constant({1})})}), net.constant({0.5f})});
}

TEST(FuseEpilogue, TakesBiasAndGeluBehindAMatMul) {
  Net net;
  const ValueId y = net.op("MatMul", {net.input("x", symbolic({"n", "?", "6"})), net.weights({6, 5})});
  net.output(gelu(net, net.op("Add", {y, net.weights({5})})));
  const Graph after = run_and_compare(net.graph, passes::fuse_epilogue, true);
  EXPECT_EQ(ops_of(after), "MatMul+Add+Div+Erf+Add+Mul+Mul");
  EXPECT_EQ(after.node(after.order()[0]).epilogue->inputs, 1);
}

TEST(FuseEpilogue, TakesResidualAndReluBehindTheLaterConvolution) {
  Net net;
  const ValueId x = net.input("x", Dims{1, 4, 3, 3});
  const ValueId shortcut = conv(net, x, 4, 4);
  const ValueId y = conv(net, net.op("Relu", {conv(net, x, 4, 4, 3)}), 4, 4, 3);
  net.output(net.op("Relu", {net.op("Add", {y, shortcut})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "Conv Conv+Relu Conv+Add+Relu");
}

TEST(FuseEpilogue, WaitsForTheExtentsOfAResidual) {
  Net net;
  const ValueId x = net.input("x", symbolic({"n", "4", "?", "?"}));
  net.output(net.op("Add", {conv(net, x, 4, 4), net.input("r", symbolic({"n", "4", "?", "?"}))}));
  run_and_compare(net.graph, passes::fuse_epilogue, false);
}

TEST(FuseEpilogue, StopsWhereAValueIsReadElsewhere) {
  Net net;
  const ValueId y = net.op("Relu", {conv(net, net.input("x", Dims{1, 4, 3, 3}), 4, 4)});
  net.output(net.op("Sqrt", {y}));
  net.output(net.op("Sigmoid", {y}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "Conv+Relu Sqrt Sigmoid");
}

TEST(FuseEpilogue, StopsBeforeAnOperandThatSpreadsTheResult) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 4, 1, 1}), 4, 4);
  net.output(net.op("Mul", {net.op("Sigmoid", {y}), net.input("z", Dims{1, 4, 3, 3})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "Conv+Sigmoid Mul");
}

TEST(FuseEpilogue, StopsBeforeOperandsAlongOtherAxes) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 4, 3, 3}), 4, 4);
  net.output(net.op("Add", {net.op("Relu", {y}), net.weights({3})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "Conv+Relu Add");
}

TEST(FuseEpilogue, TakesWhateverSpreadsIntoAMatMul) {
  Net net;
  const ValueId y = net.op("MatMul", {net.input("x", Dims{2, 3, 6}), net.weights({6, 5})});
  net.output(net.op("Add", {net.op("Mul", {y, net.input("rows", Dims{2, 3, 1})}), net.input("mask", Dims{2, 1, 5})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "MatMul+Mul+Add");
}

TEST(FuseEpilogue, DoesNotMakeACycle) {
  Net net;
  const ValueId y = conv(net, net.input("x", Dims{1, 4, 3, 3}), 4, 4);
  const ValueId around = net.op("Transpose", {y}, attributes({{"perm", std::vector<int64_t>{0, 1, 3, 2}}}));
  net.output(net.op("Add", {net.op("Relu", {y}), around}));
  run_and_compare(net.graph, passes::fuse_epilogue, false);
}

TEST(FuseEpilogue, AddsToAnEpilogueWhenMoreExtentsAreKnown) {
  Net net;
  const ValueId x = net.input("x", symbolic({"1", "4", "h", "w"}));
  const ValueId r = net.input("r", symbolic({"1", "4", "?", "?"}));
  net.output(net.op("Sigmoid", {net.op("Add", {net.op("Relu", {conv(net, x, 4, 4)}), r})}));
  infer_types(net.graph);
  EXPECT_TRUE(passes::fuse_epilogue(net.graph, testing::pass_context()));
  EXPECT_TRUE(passes::fuse_pointwise(net.graph, testing::pass_context()));
  EXPECT_EQ(ops_of(net.graph), "Conv+Relu Add+Sigmoid");
  for (const ValueId id : {x, r}) net.graph.value(id).type = TensorType::of(DType::f32, {1, 4, 3, 3});
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_epilogue, true)), "Conv+Relu+Add+Sigmoid");
}

TEST(FusePointwise, TakesADiamond) {
  Net net;
  net.output(gelu(net, net.op("MatMul", {net.input("x", symbolic({"n", "6"})), net.weights({6, 5})})));
  const Graph after = run_and_compare(net.graph, passes::fuse_pointwise, true);
  EXPECT_EQ(count_of(after, "Pointwise"), 1);
  EXPECT_EQ(after.order().size(), 2u);
  EXPECT_EQ(after.node(after.order()[1]).inputs.size(), 1u);
}

TEST(FusePointwise, KnowsThatEqualUnknownExtentsAreEqual) {
  Net net;
  const ValueId x = net.op("Relu", {net.input("x", symbolic({"?", "3"}))});
  const ValueId reshaped = net.op("Reshape", {x, net.integers({-1, 1, 3})});
  net.output(gelu(net, net.op("Sqrt", {reshaped})));
  const Graph after = run_and_compare(net.graph, passes::fuse_pointwise, true);
  EXPECT_EQ(after.order().size(), 3u);
}

TEST(FusePointwise, BroadcastsOperandsButRecomputesNothing) {
  Net net;
  const ValueId row = net.op("Sqrt", {net.op("Sigmoid", {net.input("row", Dims{1, 5})})});
  const ValueId column = net.op("Relu", {net.input("column", Dims{4, 1})});
  net.output(net.op("Relu", {net.op("Add", {row, column})}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_pointwise, true)), "Sigmoid+Sqrt Relu Add+Relu");
}

TEST(FusePointwise, KeepsTheRankThatAConstantGives) {
  Net net;
  const ValueId y = net.op("Add", {net.input("x", Dims{3}), net.constant(Tensor::from<float>({1, 1}, {2.f}))});
  net.output(net.op("Relu", {y}));
  run_and_compare(net.graph, passes::fuse_pointwise, true);
}

TEST(FusePointwise, NeverComputesIntegersInFloat) {
  Net net;
  const ValueId x = net.input("x", TensorType::of(DType::i64, {3}));
  net.output(net.op("Mul", {net.op("Add", {x, x}), x}));
  run_and_compare(net.graph, passes::fuse_pointwise, false);
}

TEST(FusePointwise, StopsAtOutputsOfTheGraph) {
  Net net;
  const ValueId y = net.op("Sigmoid", {net.input("x", Dims{3})});
  net.output(y);
  net.output(net.op("Relu", {y}));
  run_and_compare(net.graph, passes::fuse_pointwise, false);
}

TEST(FusePointwise, CarriesTruthAndConversionsInside) {
  Net net;
  const ValueId x = net.input("x", Dims{2, 3});
  const ValueId mask = net.op("Cast", {net.op("Less", {x, net.scalar(0.1f)})}, attributes({{"to", int64_t{1}}}));
  net.output(net.op("Mul", {mask, x}));
  EXPECT_EQ(ops_of(run_and_compare(net.graph, passes::fuse_pointwise, true)), "Less+Cast+Mul");
}

TEST(FusePointwise, ReadsAtMostEightOperands) {
  Net net;
  ValueId sum = net.input("x0", Dims{3});
  for (int i = 1; i < 12; ++i) sum = net.op("Add", {sum, net.input("x" + std::to_string(i), Dims{3})});
  net.output(sum);
  const Graph after = run_and_compare(net.graph, passes::fuse_pointwise, true);
  for (const NodeId id : after.order()) EXPECT_LE(after.node(id).inputs.size(), 8u);
}

}  // namespace
}  // namespace lathe
