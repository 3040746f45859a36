// Quantized convolutions become convolutions of integers, with the results that the separate operators have.
#include "tests/ops/quantized_net.h"

namespace lathe::testing {
namespace {

TEST(QuantizedConvPasses, MoveQuantizeLinearInFrontOfAConcatSoThatConvolutionsStoreBytes) {
  QuantizedNet net;
  const ValueId x = net.quantized(net.input(Dims{1, 8, 6, 6}), 0.008F, 128);
  const ValueId own = net.quantized(net.op("Conv", {x, net.weights({8, 8, 1, 1}, 0)}), 0.03F, 120);
  const ValueId turned =
      net.op("Transpose", {net.input(Dims{1, 6, 6, 4})}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}});
  const ValueId whole = net.op("Concat", {net.op("Sigmoid", {own}), turned}, {{"axis", int64_t{1}}});
  net.graph.outputs = {net.op("Conv", {net.quantized(whole, 0.02F, 100), net.weights({8, 12, 1, 1}, 0)})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedConv"), 2);
  int found = 0;
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    if (node.op->name != "Concat") continue;
    ++found;
    ASSERT_EQ(node.inputs.size(), 2U);
    for (const ValueId input : node.inputs) EXPECT_EQ(after.value(input).type.dtype, DType::u8);
    EXPECT_EQ(after.node(after.value(node.inputs[0]).producer).op->name, "QuantizedConv");
    EXPECT_EQ(after.node(after.value(node.inputs[1]).producer).op->name, "Transpose");
  }
  EXPECT_EQ(found, 1);
  expect_same_results(net, after, 0.3);
}

TEST(QuantizedConvPasses, LeaveAQuantizeLinearBehindAConcatThatOthersRead) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{1, 8, 6, 6}), y = net.input(Dims{1, 4, 6, 6});
  const ValueId whole = net.op("Concat", {x, y}, {{"axis", int64_t{1}}});
  net.graph.outputs = {net.quantize(whole, 0.02F, 100), net.op("Relu", {whole})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizeLinear"), 1);
  expect_same_results(net, after, 0);
}

TEST(QuantizedConvPasses, TurnAConvolutionWithItsResidualIntoOneOfIntegers) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{1, 8, 6, 6});
  const ValueId a = net.quantized(x, 0.008F, 128);
  const ValueId units = net.op("DequantizeLinear", {net.constant(bias_of(8, 100)), net.constant(scales(8, 0.008F))},
                               {{"axis", int64_t{0}}});
  const ValueId conv =
      net.op("Conv", {a, net.weights({8, 8, 3, 3}, 0), units}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  const ValueId sum = net.op("Add", {net.quantized(conv, 0.02F, 120), a});
  net.graph.outputs = {net.dequantize(net.quantize(sum, 0.02F, 100), 0.02F, 100)};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "Conv"), 0);
  EXPECT_EQ(count(after, "Add"), 0);
  ASSERT_EQ(count(after, "QuantizedConv"), 1);
  expect_same_results(net, after, 0.0401);
}

TEST(QuantizedConvPasses, LeaveConvolutionsAloneWhoseSumsMayOverflow) {
  for (const int64_t channels : {int64_t{33025}, int64_t{33026}}) {
    QuantizedNet net;
    const ValueId x = net.quantized(net.input(Dims{1, channels, 1, 1}), 0.01F, 128);
    net.graph.outputs = {net.op("Conv", {x, net.weights({1, channels, 1, 1}, 0)})};
    EXPECT_EQ(count(optimized(net), "QuantizedConv"), channels == 33025 ? 1 : 0) << channels;
  }
}

TEST(QuantizedConvPasses, TurnConvIntegerThatIsReadAsFloatIntoOneThatScales) {
  QuantizedNet net;
  net.output(net.dynamic("ConvInteger", {1, 8, 5, 5}, {4, 8, 3, 3}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "ConvInteger"), 0);
  EXPECT_EQ(count(after, "QuantizedConv"), 1);
  expect_same_results(net, after, 1e-3);
}

TEST(QuantizedConvPasses, ConvolveSingleChannelsOfConvIntegerOnIntegersOrInFloat32) {
  struct Form {
    Dims weights;
    const char* made;
  };
  const Form forms[] = {{{8, 1, 3, 3}, "QuantizedConv"},
                        {{8, 1, 13, 2}, "QuantizedConv"},
                        {{8, 1, 3, 14}, "Conv"},
                        {{16, 1, 3, 3}, "Conv"}};
  for (const Form& form : forms) {
    SCOPED_TRACE(to_string(form.weights));
    const QuantizedNet::NamedAttributes alone = {{"group", int64_t{8}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
    QuantizedNet net;
    net.output(net.dynamic("ConvInteger", {1, 8, 15, 15}, form.weights, alone));
    const Graph after = optimized(net);
    EXPECT_EQ(count(after, "ConvInteger"), 0);
    EXPECT_EQ(count(after, form.made), 1);
    expect_same_results(net, after, 1e-4);
  }
  // Sums of so many terms have more bits than float32.
  QuantizedNet large;
  large.output(large.dynamic("ConvInteger", {1, 8, 20, 20}, {8, 1, 17, 17}, {{"group", int64_t{8}}}));
  EXPECT_EQ(count(optimized(large), "ConvInteger"), 1);
}

TEST(QuantizedConvPasses, LeaveSumsThatAreReadAsIntegersExact) {
  for (const int64_t group : {1, 8}) {
    QuantizedNet net;
    const std::vector<ValueId> parts = net.op("DynamicQuantizeLinear", {net.input(Dims{1, 8, 5, 5})}, 3, {});
    const ValueId zero = net.constant(Tensor::scalar(uint8_t{3}));
    const ValueId sums = net.op("ConvInteger", {parts[0], net.bytes(DType::u8, {8, 8 / group, 3, 3}), parts[2], zero},
                                {{"group", group}});
    net.output(net.op("Cast", {net.op("Mul", {sums, sums})}, {{"to", int64_t{1}}}));
    const Graph after = optimized(net);
    EXPECT_EQ(count(after, "ConvInteger"), 0);
    expect_same_results(net, after, 0);
  }
}

TEST(QuantizedConvPasses, TakeZeroPointsOutOfWeightsThatStayBytes) {
  for (const bool fits : {true, false}) {
    QuantizedNet net;
    Tensor weights(DType::u8, {4, 8, 1, 1}), zeros(DType::u8, {4});
    for (int64_t i = 0; i < weights.size(); ++i) weights.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(i * 8);
    for (int64_t i = 0; i < 4; ++i) zeros.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(fits ? 128 - i : 110);
    const ValueId w = net.op("DequantizeLinear", {net.constant(weights), net.constant(scales(4)), net.constant(zeros)},
                             {{"axis", int64_t{0}}});
    net.output(net.op("Conv", {net.quantized(net.input(Dims{1, 8, 5, 5}), 0.008F, 128), w}));
    const Graph after = optimized(net);
    for (const NodeId id : after.order()) {
      const Node& node = after.node(id);
      if (node.op->name != "QuantizedConv") continue;
      EXPECT_EQ(after.value(node.inputs[1]).type.dtype, fits ? DType::i8 : DType::u8);
      EXPECT_EQ(node.inputs[4] == ValueId::none, fits);
    }
    EXPECT_EQ(count(after, "QuantizedConv"), 1);
    expect_same_results(net, after, 1e-4);
  }
}

TEST(QuantizedConvPasses, ReadBothBranchesOfASumAsBytes) {
  QuantizedNet net;
  const ValueId x = net.quantized(net.input(Dims{1, 8, 6, 6}), 0.008F, 128);
  const ValueId a = net.op("Conv", {x, net.weights({8, 8, 1, 1}, 0)});
  const ValueId b = net.op("Conv", {x, net.weights({8, 8, 1, 1}, 0)});
  const ValueId sum = net.op("Add", {net.quantized(a, 0.02F, 120), net.quantized(b, 0.03F, 110)});
  net.graph.outputs = {net.quantized(sum, 0.04F, 100)};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "Add"), 0);
  EXPECT_EQ(count(after, "DequantizeLinear"), 0);
  int bytes = 0;
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    bytes += node.op->name == "QuantizedConv" && after.value(node.outputs[0]).type.dtype == DType::u8;
  }
  EXPECT_EQ(bytes, 1);
  expect_same_results(net, after, 0.0401);
}

TEST(QuantizedConvPasses, TakeQLinearConvApartOrTurnItIntoOneOfIntegers) {
  struct Form {
    int64_t group;
    Dims weights;
    bool has_kernels;
  };
  const Form forms[] = {{1, {8, 8, 3, 3}, true},
                        {4, {8, 2, 3, 3}, true},
                        {8, {8, 1, 3, 3}, true},
                        {8, {8, 1, 14, 1}, false},
                        {8, {16, 1, 3, 3}, false}};
  for (const Form& form : forms) {
    SCOPED_TRACE(to_string(form.weights));
    const int64_t channels = form.weights[0];
    QuantizedNet net;
    const ValueId x = net.quantize(net.input(Dims{1, 8, 14, 6}), 0.008F, 128);
    const ValueId y =
        net.op("QLinearConv",
               {x, net.scalar(0.008F), net.constant(Tensor::scalar(uint8_t{128})), net.bytes(DType::i8, form.weights),
                net.constant(scales(channels)), net.constant(Tensor(DType::i8, {channels})), net.scalar(0.02F),
                net.constant(Tensor::scalar(uint8_t{100})), net.constant(bias_of(channels, 500))},
               {{"group", form.group}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}});
    net.graph.outputs = {net.dequantize(y, 0.02F, 100)};
    const Graph after = optimized(net);
    EXPECT_EQ(count(after, "QLinearConv"), 0);
    EXPECT_EQ(count(after, "QuantizedConv"), form.has_kernels ? 1 : 0);
    EXPECT_EQ(count(after, "Conv"), form.has_kernels ? 0 : 1);
    expect_same_results(net, after, 0.0201);
  }
}

TEST(QuantizedConvPasses, KeepBytesBetweenConvolutionsAcrossAMaxPool) {
  QuantizedNet net;
  const ValueId x = net.input(Dims{1, 8, 6, 6});
  const ValueId conv = net.op("Conv", {net.quantized(x, 0.008F, 128), net.weights({8, 8, 1, 1}, 0)});
  const ValueId pool = net.op("MaxPool", {net.quantized(conv, 0.02F, 120)},
                              {{"kernel_shape", std::vector<int64_t>{3, 3}}, {"strides", std::vector<int64_t>{2, 2}}});
  const ValueId last = net.op("Conv", {net.quantized(pool, 0.02F, 120), net.weights({8, 8, 1, 1}, 0)});
  net.graph.outputs = {last};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedConv"), 2);
  EXPECT_EQ(count(after, "DequantizeLinear"), 0);
  EXPECT_EQ(count(after, "QuantizeLinear"), 1);
  expect_same_results(net, after, 0.1);
}

TEST(QuantizedConvPasses, MakeSignedBytesUnsignedThatAreOnlyDequantized) {
  QuantizedNet net;
  const ValueId scale = net.scalar(0.008F), zero = net.constant(Tensor::scalar(int8_t{-5}));
  const ValueId inner = net.op("QuantizeLinear", {net.input(Dims{1, 8, 6, 6}), scale, zero});
  const ValueId conv = net.op("Conv", {net.op("DequantizeLinear", {inner, scale, zero}), net.weights({4, 8, 3, 3}, 0)});
  const ValueId outer = net.op("QuantizeLinear", {conv, net.scalar(0.02F), zero});
  net.graph.outputs = {outer};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizedConv"), 1);
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    if (node.op->name == "QuantizedConv") {
      EXPECT_EQ(after.value(node.inputs[0]).type.dtype, DType::u8);
    }
  }
  // The result is signed to the user.
  EXPECT_EQ(after.value(after.outputs[0]).type.dtype, DType::i8);
  expect_same_results(net, after, 1);
}

}  // namespace
}  // namespace lathe::testing
