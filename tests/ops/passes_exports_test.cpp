// Small networks as frameworks export them, through all passes of loading: what is left of Transposes and heads.
#include "graph/pipeline.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using Ints = std::vector<int64_t>;

const Ints kToLast{0, 2, 3, 1}, kToFirst{0, 3, 1, 2};

Graph loaded(PassNet& net) {
  // One pass that is all of them: results are compared before and after.
  return testing::rewritten(net, {[](Graph& graph, const PassContext& context) {
                              run_passes(graph, load_passes(), context, 99, {});
                              return false;
                            }});
}

int count_of(const Graph& graph, std::string_view op) {
  int count = 0;
  for (const NodeId id : graph.order()) count += graph.node(id).op->name == op;
  return count;
}

// --- TensorFlow: pictures with channels last, Transposes around whatever its exporter writes in the other order

struct TensorFlow {
  PassNet net;
  ValueId conv(ValueId x, int64_t from, int64_t to, int64_t stride = 1) {
    const ValueId first = net.transpose(x, kToFirst);
    const ValueId y = net.op("Conv", {first, net.weights({to, from, 3, 3}, -0.3f, 0.3f)},
                             {{"pads", Ints(4, 1)}, {"strides", Ints(2, stride)}});
    return net.op("Add", {net.transpose(y, kToLast), net.weights({to})});
  }
  ValueId pooled(ValueId x) {
    const ValueId y =
        net.op("MaxPool", {net.transpose(x, kToFirst)}, {{"kernel_shape", Ints(2, 2)}, {"strides", Ints(2, 2)}});
    return net.transpose(y, kToLast);
  }
  ValueId swish(ValueId x) { return net.op("Mul", {x, net.op("Sigmoid", {x})}); }
};

TEST(TensorFlowExport, OfAResidualNetworkEndsWithTheTransposeOfItsInput) {
  TensorFlow tf;
  PassNet& net = tf.net;
  ValueId x = tf.swish(tf.conv(net.input(Dims{1, 8, 8, 3}), 3, 8));
  x = net.op("Relu", {net.op("Add", {tf.conv(tf.swish(tf.conv(x, 8, 8)), 8, 8), x})});
  x = tf.pooled(net.op("Pad", {x, net.integers({0, 0, 0, 0, 0, 1, 1, 0})}));
  const ValueId mean = net.op("ReduceMean", {x}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{0}}});
  net.output(net.op("MatMul", {mean, net.weights({8, 4})}));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Transpose"), 1) << ops_of(after);
}

TEST(TensorFlowExport, OfASegmentationHeadKeepsTheTransposesOfInputAndOutput) {
  TensorFlow tf;
  PassNet& net = tf.net;
  const ValueId skip = tf.conv(net.input(Dims{1, 8, 8, 3}), 3, 8);
  ValueId x = net.op("PRelu", {tf.conv(net.op("Relu", {skip}), 8, 8, 2), net.weights({1, 1, 8})});
  x = net.op("Resize", {x, ValueId::none, ValueId::none, net.integers({1, 8, 8, 8})},
             {{"mode", std::string("linear")}});
  x = net.op("Concat", {x, net.op("Relu", {skip})}, {{"axis", int64_t{-1}}});
  const std::vector<ValueId> parts =
      net.op("Split", {tf.conv(x, 16, 8), net.integers({4, 4})}, 2, {{"axis", int64_t{3}}});
  x = net.op("Mul", {parts[0], net.op("Sigmoid", {parts[1]})});
  net.output(net.op("Softmax", {tf.conv(x, 4, 4)}, {{"axis", int64_t{-1}}}));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Transpose"), 2) << ops_of(after);
}

TEST(TensorFlowExport, OfSqueezeAndExcitationKeepsNoTransposeInside) {
  TensorFlow tf;
  PassNet& net = tf.net;
  const ValueId x = net.op("Relu", {tf.conv(net.input(Dims{1, 8, 8, 3}), 3, 8)});
  const ValueId mean = net.op("ReduceMean", {x}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{1}}});
  const ValueId gate = net.op("Sigmoid", {tf.conv(net.op("Relu", {tf.conv(mean, 8, 4)}), 4, 8)});
  net.output(net.op("ReduceMax", {net.op("Mul", {x, gate})}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{0}}}));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Transpose"), 1) << ops_of(after);
}

// --- attention

constexpr int64_t kLength = 5, kHeads = 3, kSize = 4, kWidth = kHeads * kSize;

ValueId projected(PassNet& net, ValueId x, int64_t columns = kWidth) {
  return net.op("Add", {net.op("MatMul", {x, net.weights({kWidth, columns})}), net.weights({columns})});
}
ValueId softmax(PassNet& net, ValueId x) { return net.op("Softmax", {x}, {{"axis", int64_t{-1}}}); }
ValueId joined(PassNet& net, ValueId x) { return net.reshape(net.transpose(x, {0, 2, 1, 3}), {0, 0, kWidth}); }

TEST(AttentionExport, OfPyTorchTakesKeysAndValuesOfStepsBefore) {
  PassNet net;
  const ValueId x = net.input(Dims{1, kLength, kWidth});
  const auto heads = [&] {
    return net.transpose(net.reshape(projected(net, x), {0, kLength, kHeads, kSize}), {0, 2, 1, 3});
  };
  const auto with_past = [&] {
    const ValueId past = net.input(Dims{1, kHeads, 7, kSize});
    const ValueId all = net.op("Concat", {past, heads()}, {{"axis", int64_t{2}}});
    net.output(all);
    return all;
  };
  const ValueId q = heads(), k = with_past(), v = with_past();
  ValueId scores = net.op("MatMul", {q, net.transpose(k, {0, 1, 3, 2})});
  scores = net.op("Add", {net.op("Div", {scores, net.scalar(2)}), net.input(Dims{1, 1, kLength, 7 + kLength})});
  net.output(joined(net, net.op("MatMul", {softmax(net, scores), v})));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Attention"), 1) << ops_of(after);
  EXPECT_EQ(count_of(after, "Concat"), 2) << ops_of(after);
}

// Transposes of keys apart from those of heads, the scale before the product, a mask made of a number per token.
TEST(AttentionExport, OfTensorFlowTakesKeysTurnedTwice) {
  PassNet net;
  const ValueId x = net.input(Dims{2, kLength, kWidth});
  const auto heads = [&] {
    return net.transpose(net.reshape(projected(net, x), {2, kLength, kHeads, kSize}), {0, 2, 1, 3});
  };
  const ValueId k = net.transpose(heads(), {0, 1, 3, 2});
  const ValueId scores = net.op("Mul", {net.op("MatMul", {heads(), k}), net.scalar(0.5f)});
  const ValueId kept = net.op("Unsqueeze", {net.input(Dims{2, 1, kLength}), net.integers({1})});
  const ValueId mask = net.op("Mul", {net.op("Sub", {net.scalar(1), kept}), net.scalar(-10000)});
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("Add", {scores, mask})), heads()})));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Attention"), 1) << ops_of(after);
  EXPECT_EQ(count_of(after, "Transpose"), 0) << ops_of(after);
}

// One projection to all three, taken apart behind a Transpose.
TEST(AttentionExport, OfPaddleTakesSlicesOfOneProjection) {
  PassNet net;
  const ValueId all =
      net.reshape(projected(net, net.input(Dims{1, kLength, kWidth}), 3 * kWidth), {0, kLength, 3, kHeads, kSize});
  const ValueId turned = net.transpose(all, {2, 0, 3, 1, 4});
  const auto part = [&](int64_t at) {
    const ValueId one = net.op("Slice", {turned, net.integers({at}), net.integers({at + 1}), net.integers({0})});
    return net.op("Squeeze", {one, net.integers({0})});
  };
  const ValueId q = net.op("Mul", {part(0), net.scalar(0.5f)}), k = net.transpose(part(1), {0, 1, 3, 2}), v = part(2);
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), v})));
  const Graph after = loaded(net);
  EXPECT_EQ(count_of(after, "Attention"), 1) << ops_of(after);
}

}  // namespace
}  // namespace lathe
