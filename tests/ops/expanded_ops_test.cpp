// Operators of ai.onnx that have a reference of their own and give way to other nodes: the same numbers from both.
#include <gtest/gtest.h>

#include "graph/expand.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

void expect_same_expanded(PassNet& net, float tolerance) {
  infer_types(net.graph, Limits());
  Graph after = net.graph;
  ASSERT_TRUE(expand_nodes(after, OpRegistry::builtin()));
  verify(after);
  std::vector<Tensor> inputs;
  for (const ValueId id : net.graph.inputs) inputs.push_back(net.noise(net.graph.value(id).type.extents()));
  const std::vector<Tensor> expected = run_reference_graph(net.graph, inputs),
                            result = run_reference_graph(after, inputs);
  ASSERT_EQ(result[0].dims(), expected[0].dims());
  for (int64_t i = 0; i < expected[0].size(); ++i) {
    ASSERT_NEAR(result[0].data<float>()[i], expected[0].data<float>()[i], tolerance) << "element " << i;
  }
}

TEST(ExpandedOps, NormalizeAlongAxes) {
  for (const int64_t p : {1, 2}) {
    for (const int64_t axis : {-1, 0, 1}) {
      PassNet net;
      net.output(net.op("LpNormalization", {net.input({3, 7, 5})}, {{"axis", axis}, {"p", p}}));
      expect_same_expanded(net, 1e-6f);
    }
  }
  PassNet net;
  net.output(net.op("MeanVarianceNormalization", {net.input({2, 3, 4, 5})}));
  expect_same_expanded(net, 2e-6f);
}

TEST(ExpandedOps, TakeALineOfZerosAsItIs) {
  PassNet net;
  net.output(net.op("LpNormalization", {net.op("Mul", {net.input({2, 3}), net.scalar(0)})}));
  expect_same_expanded(net, 0);
}

TEST(ExpandedOps, AddUpExponentials) {
  for (const int64_t keeps : {0, 1}) {
    PassNet net;
    const ValueId x = net.op("Mul", {net.input({3, 7, 5}), net.scalar(60)});
    net.output(net.op("ReduceLogSumExp", {x}, {{"axes", std::vector<int64_t>{-1, 0}}, {"keepdims", keeps}}, 13));
    expect_same_expanded(net, 5e-5f);
    PassNet all;
    all.output(all.op("ReduceLogSumExp", {all.input({3, 7, 5})}, {{"keepdims", keeps}}, 18));
    expect_same_expanded(all, 2e-6f);
  }
}

TEST(ExpandedOps, AddUpIntegers) {
  using Ints = std::vector<int64_t>;
  const auto cast = [](PassNet& net, ValueId x, DType to) {
    return net.op("Cast", {x}, {{"to", static_cast<int64_t>(to)}}, 13);
  };
  for (const char* op : {"ReduceMean", "ReduceSumSquare", "ReduceL1"}) {
    for (const DType dtype : {DType::i32, DType::i64}) {
      for (const Ints& axes : {Ints{-1}, Ints{0, -1}, Ints{1}, Ints{}}) {
        for (const int64_t keeps : {0, 1}) {
          PassNet net;
          const ValueId x = cast(net, net.op("Mul", {net.input({3, 7, 5}), net.scalar(60)}), dtype);
          const ValueId result = axes.empty() ? net.op(op, {x}, {{"keepdims", keeps}}, 18)
                                              : net.op(op, {x}, {{"axes", axes}, {"keepdims", keeps}}, 13);
          net.output(cast(net, result, DType::f32));
          expect_same_expanded(net, 0);
        }
      }
    }
  }
}

TEST(ExpandedOps, FindTheLargestOfShortIntegers) {
  for (const DType dtype : {DType::u8, DType::i8, DType::u16, DType::i16}) {
    for (const char* op : {"ArgMax", "ArgMin"}) {
      for (const int64_t takes_last : {0, 1}) {
        PassNet net;
        const ValueId scaled = net.op("Abs", {net.op("Mul", {net.input({5, 9, 7}), net.scalar(6)})});
        const ValueId x = net.op("Cast", {scaled}, {{"to", static_cast<int64_t>(dtype)}}, 13);
        const ValueId places =
            net.op(op, {x}, {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}, {"select_last_index", takes_last}}, 13);
        net.output(net.op("Cast", {places}, {{"to", static_cast<int64_t>(DType::f32)}}, 13));
        expect_same_expanded(net, 0);
      }
    }
  }
}

TEST(ExpandedOps, MakeGrids) {
  for (const int64_t aligns : {0, 1}) {
    PassNet net;
    net.output(
        net.op("AffineGrid", {net.input({2, 2, 3}), net.integers({2, 4, 5, 1})}, {{"align_corners", aligns}}, 20));
    expect_same_expanded(net, 2e-6f);
    PassNet volume;
    volume.output(volume.op("AffineGrid", {volume.input({1, 3, 4}), volume.integers({1, 2, 3, 4, 5})},
                            {{"align_corners", aligns}}, 20));
    expect_same_expanded(volume, 2e-6f);
  }
}

TEST(ExpandedOps, PoolByPowers) {
  using Ints = std::vector<int64_t>;
  for (const int64_t p : {1, 2, 3}) {
    PassNet net;
    net.output(net.op("LpPool", {net.input({2, 3, 7, 6})},
                      {{"p", p}, {"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}}));
    expect_same_expanded(net, 3e-6f);
    PassNet line;
    line.output(
        line.op("LpPool", {line.input({2, 3, 11})},
                {{"p", p}, {"kernel_shape", Ints{3}}, {"dilations", Ints{2}}, {"auto_pad", std::string("VALID")}}, 18));
    expect_same_expanded(line, 3e-6f);
    PassNet whole;
    whole.output(whole.op("GlobalLpPool", {whole.input({2, 3, 4, 5})}, {{"p", p}}));
    expect_same_expanded(whole, 2e-5f);
  }
}

TEST(ExpandedOps, MarkTheFirstOfTheLargest) {
  for (const int64_t axis : {-1, 0, 1}) {
    PassNet net;
    net.output(net.op("Hardmax", {net.op("Round", {net.op("Mul", {net.input({3, 7, 5}), net.scalar(4)})})},
                      {{"axis", axis}}, 13));
    expect_same_expanded(net, 0);
  }
}

// Up to version 12 a Hardmax may flatten behind the last axis: rows of one element.
TEST(ExpandedOps, LeaveAFlatteningHardmaxUnlessItsRowsAreTheLastAxis) {
  const char* const expected[] = {"Hardmax", "Hardmax", "ArgMax OneHot", "Hardmax"};
  for (int64_t axis = 0; axis < 4; ++axis) {
    PassNet net;
    net.output(net.op("Hardmax", {net.input({3, 7, 5})}, {{"axis", axis}}, 11));
    EXPECT_EQ(ops_of(rewritten(net, {passes::expand_composites})), expected[axis]) << axis;
  }
}

TEST(ExpandedOps, SampleDeformedWindows) {
  for (const int64_t groups : {1, 2}) {
    for (const int64_t shifts : {1, 2}) {
      PassNet net;
      const int64_t taps = 6;
      const std::vector<ValueId> operands{net.input({2, 4, 7, 6}), net.input({6, 4 / groups, 3, 2}),
                                          net.input({2, 2 * shifts * taps, 4, 7}), net.input({6}),
                                          net.input({2, shifts * taps, 4, 7})};
      const auto conv = [&](std::vector<ValueId> inputs) {
        return net.op("DeformConv", std::move(inputs),
                      {{"group", groups},
                       {"offset_group", shifts},
                       {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                       {"strides", std::vector<int64_t>{2, 1}}},
                      19);
      };
      net.output(conv(operands));
      expect_same_expanded(net, 2e-5f);
    }
  }
}

// Whatever is added moves the values of a full graph.
TEST(Expanded, ReadsTypesWhileTheGraphGrows) {
  for (int others = 0; others < 9; ++others) {
    Graph graph;
    const TensorType type = TensorType::of(DType::f32, {6, 2});
    for (int i = 0; i < others; ++i) graph.inputs.push_back(graph.add_value("other" + std::to_string(i), type));
    const ValueId x = graph.add_value("x", type), bias = graph.add_value("bias", type), y = graph.add_value("y", type);
    graph.inputs.insert(graph.inputs.end(), {x, bias});
    graph.outputs = {y};
    Node node;
    node.op = &OpRegistry::builtin().require("com.microsoft", "BiasSoftmax", 1);
    node.name = "node";
    node.inputs = {x, bias};
    node.outputs = {y};
    graph.add_node(std::move(node));
    EXPECT_NO_THROW(EXPECT_TRUE(expand_nodes(graph, OpRegistry::builtin()))) << others;
  }
}

}  // namespace
}  // namespace lathe
