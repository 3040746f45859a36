// Quantized products, and quantization itself: what passes make of them has the results that separate operators have.
#include "tests/ops/quantized_net.h"

namespace lathe::testing {
namespace {

using Ints = std::vector<int64_t>;

TEST(QuantizedPasses, TurnAProductAndWhatFollowsIntoOneProductOfIntegers) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{2, 8, 32});
  const ValueId a = net.quantized(x, 0.008F, 128);
  const ValueId product = net.op("MatMul", {a, net.weights({32, 32}, 1)});
  const ValueId biased = net.op("Add", {net.quantized(product, 0.02F, 120), net.scalar(0.25F)});
  const ValueId sum = net.op("Add", {biased, a});
  net.graph.outputs = {net.dequantize(net.quantize(sum, 0.02F, 100), 0.02F, 100)};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "MatMul"), 0);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 1);
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    if (node.op->name != "QuantizedMatMul") continue;
    ASSERT_TRUE(node.epilogue);
    // The residual is read as bytes.
    ASSERT_EQ(node.epilogue->inputs, 1);
    EXPECT_EQ(after.value(node.inputs.back()).type.dtype, DType::u8);
  }
  expect_same_results(net, after, 0.0201);
}

TEST(QuantizedPasses, MoveQuantizeLinearInFrontOfTransposesAndTakeThemIntoTheProduct) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{1, 6, 2, 16}), y = net.input(Dims{1, 5, 2, 16});
  const ValueId a = net.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  const ValueId b = net.op("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
  net.graph.outputs = {net.op("MatMul", {net.quantized(a, 0.01F, 128), net.quantized(b, 0.008F, 127)})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 1);
  EXPECT_EQ(count(after, "Transpose"), 0);
  expect_same_results(net, after, 1e-5);
}

TEST(QuantizedPasses, TakeAGemmWithTransposedWeightsAndABias) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{3, 20});
  Tensor bias(DType::f32, {12});
  for (int64_t i = 0; i < 12; ++i) bias.mutable_data<float>()[i] = static_cast<float>(i) - 6;
  net.graph.outputs = {net.op("Gemm", {net.quantized(x, 0.01F, 100), net.weights({12, 20}, 0), net.constant(bias)},
                              {{"transB", int64_t{1}}})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "Gemm"), 0);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 1);
  expect_same_results(net, after, 1e-4);
}

TEST(QuantizedPasses, LeaveProductsAloneWhoseScalesRunAcrossTheSum) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{3, 20});
  net.graph.outputs = {net.op("MatMul", {net.quantized(x, 0.01F, 100), net.weights({20, 12}, 0)})};
  EXPECT_EQ(count(optimized(net), "QuantizedMatMul"), 0);
}

// Bytes at their ends, of which more have no sum in 32 bits.
TEST(QuantizedPasses, LeaveProductsAloneWhoseSumsMayOverflow) {
  for (const int64_t k : {int64_t{33025}, int64_t{33026}}) {
    QuantizedNet net;
    const ValueId x = net.input(Dims{1, k});
    Tensor ends(DType::u8, {k, 2});
    std::fill_n(ends.mutable_data<uint8_t>(), ends.size(), uint8_t{255});
    const ValueId weights = net.dequantize(net.constant(ends), 0.01F, 0);
    net.graph.outputs = {net.op("MatMul", {net.quantized(x, 0.01F, 0), weights})};
    EXPECT_EQ(count(optimized(net), "QuantizedMatMul"), k == 33025 ? 1 : 0) << k;
  }
}

bool choose_layouts_once(Graph& graph, const PassContext& context) {
  EXPECT_TRUE(passes::choose_layouts(graph, context));
  return false;
}

// The heads of an attention, as exporters that quantize the results of products leave them.
TEST(QuantizedPasses, SinkDequantizeLinearBelowWhatMovesElementsOnTheWayToAProduct) {
  QuantizedNet net;
  const ValueId x = net.quantized(net.input(Dims{1, 6, 96}), 0.01F, 128);
  const ValueId heads = net.op("Reshape", {x, net.constant(Tensor::from<int64_t>({4}, {1, 6, 2, 48}))});
  const std::vector<ValueId> parts = net.op("Split", {heads}, 3, {{"axis", int64_t{3}}});
  const ValueId q = net.op("Div", {net.op("Transpose", {parts[0]}, {{"perm", Ints{0, 2, 1, 3}}}), net.scalar(4)});
  const ValueId k = net.op("Transpose", {parts[1]}, {{"perm", Ints{0, 2, 3, 1}}});
  const ValueId v = net.op("Transpose", {parts[2]}, {{"perm", Ints{0, 2, 1, 3}}});
  const ValueId scores = net.quantized(net.op("MatMul", {q, k}), 0.02F, 128);
  net.graph.outputs = {net.op("MatMul", {scores, v})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 2);
  EXPECT_EQ(count(after, "MatMul"), 0);
  EXPECT_EQ(count(after, "DequantizeLinear"), 0);
  expect_same_results(net, after, 0.1);
}

TEST(QuantizedPasses, DequantizeTheRowsOfATableThatAreRead) {
  QuantizedNet net;
  const ValueId table = net.dequantize(net.bytes(DType::u8, {400, 16}), 0.1F, 120);
  const ValueId rows = net.op("Gather", {table, net.integers({7, 399, -2})});
  net.output(net.op("Relu", {rows}));
  const Graph after = rewritten(net, {passes::sink_dequantize, passes::remove_dead});
  const Node& dequantize = after.node(after.order()[after.order().size() - 2]);
  EXPECT_EQ(dequantize.op->name, "DequantizeLinear");
  EXPECT_EQ(after.value(dequantize.inputs[0]).type.extents(), (Dims{3, 16}));
}

TEST(QuantizedPasses, KeepTheScalesOfChannelsThatATransposeMoves) {
  QuantizedNet net;
  const ValueId x = net.quantized(net.input(Dims{3, 20}), 0.01F, 100);
  const ValueId turned = net.op("Transpose", {net.weights({12, 20}, 0)}, {{"perm", Ints{1, 0}}});
  net.graph.outputs = {net.op("MatMul", {x, turned})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 1);
  expect_same_results(net, after, 1e-4);
}

TEST(QuantizedPasses, LeaveDequantizeLinearInFrontOfMovementsToProductsOfFloats) {
  QuantizedNet net;
  const ValueId x = net.quantized(net.input(Dims{6, 20}), 0.01F, 100);
  const ValueId turned = net.op("Transpose", {x}, {{"perm", Ints{1, 0}}});
  const ValueId negative = net.op("Mul", {x, net.scalar(-1)});  // would turn the order of bytes around
  net.graph.outputs = {net.op("MatMul", {turned, net.input(Dims{6, 5})}),
                       net.op("MatMul", {negative, net.weights({20, 12}, 1)})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedMatMul"), 0);
  EXPECT_EQ(count(after, "MatMul"), 2);
  expect_same_results(net, after, 1e-4);
}

TEST(QuantizedPasses, QuantizeDynamicallyInBlocks) {
  QuantizedNet net;
  const ValueId y = net.conv(net.input(Dims{1, 3, 4, 4}), {20, 3, 1, 1});
  const std::vector<ValueId> parts = net.op("DynamicQuantizeLinear", {y}, 3, {});
  const ValueId real = net.op("Mul", {net.op("Cast", {parts[0]}, {{"to", int64_t{1}}}), parts[1]});
  net.output(net.conv(real, {16, 20, 1, 1}));
  const Graph after = rewritten(net, {choose_layouts_once});
  EXPECT_EQ(ops_of(after), "Conv DynamicQuantizeLinear Cast Mul Conv Reorder");
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    if (node.op->name != "DynamicQuantizeLinear") continue;
    EXPECT_EQ(after.value(node.outputs[0]).type.layout.channel_block, 8);
    EXPECT_EQ(after.value(node.outputs[1]).type.layout.channel_block, 0);
  }
}

TEST(QuantizedPasses, FindScalesOfBlocksThatNobodyQuantizes) {
  QuantizedNet net;
  const ValueId y = net.conv(net.input(Dims{1, 3, 4, 4}), {16, 3, 1, 1});
  const std::vector<ValueId> parts = net.op("DynamicQuantizeLinear", {y}, 3, {});
  Value& unread = net.graph.value(parts[0]);
  net.graph.node(unread.producer).outputs[0] = ValueId::none;
  unread.producer = NodeId::none;
  net.output(net.conv(net.op("Mul", {y, parts[1]}), {16, 16, 1, 1}));
  const Graph after = rewritten(net, {choose_layouts_once});
  EXPECT_EQ(ops_of(after), "Conv Reorder DynamicQuantizeLinear Mul Conv Reorder");
}

TEST(QuantizedPasses, QuantizeAgainWhatWasDequantizedInAnotherWay) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{1, 8, 6, 6});
  net.graph.outputs = {net.quantized(net.quantized(x, 0.02F, 120), 0.02F, 121)};
  EXPECT_EQ(count(optimized(net), "QuantizeLinear"), 2);
}

TEST(QuantizedPasses, TurnMatMulIntegerThatIsReadAsFloatIntoAProductThatScales) {
  QuantizedNet net;
  net.output(net.dynamic("MatMulInteger", {4, 32}, {32, 16}));
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "MatMulInteger"), 0);
  EXPECT_EQ(count(after, "Cast"), 0);
  expect_same_results(net, after, 1e-3);
}

// A norm whose bytes one product reads twice, and one that something else reads, too.
TEST(QuantizedPasses, TakeQuantizeLinearIntoTheNormsAndSoftmaxThatMakeItsRows) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{2, 8, 32}), gain = net.PassNet::weights(Dims{32});
  const ValueId norm = net.op("LayerNormalization", {x, gain});
  const ValueId rows = net.quantize(norm, 0.03F, 120);
  const ValueId other = net.op("LayerNormalization", {net.op("Neg", {x}), gain});
  const ValueId soft = net.op("Softmax", {net.op("Exp", {x})});
  const ValueId across = net.op("Softmax", {net.op("Abs", {x})}, {{"axis", int64_t{1}}});
  net.graph.outputs = {rows, net.quantize(other, 0.02F, 100), other, net.quantize(soft, 0.004F, 0),
                       net.quantize(across, 0.004F, 0)};
  const Graph after = rewritten(net, {passes::fuse_quantize});
  EXPECT_EQ(ops_of(after),
            "LayerNormalization+QuantizeLinear Neg LayerNormalization Exp Softmax+QuantizeLinear Abs Softmax "
            "QuantizeLinear QuantizeLinear");
}

}  // namespace
}  // namespace lathe::testing
