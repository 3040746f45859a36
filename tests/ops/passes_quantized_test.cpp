// Quantized groups become products of integers, with the results that the separate operators have.
#include "ops/numbers.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

// One scale for each of `count` channels.
Tensor scales(int64_t count, float factor = 1) {
  Tensor scale(DType::f32, {count});
  for (int64_t i = 0; i < count; ++i)
    scale.mutable_data<float>()[i] = factor * (0.002F + 0.0001F * static_cast<float>(i));
  return scale;
}
Tensor bias_of(int64_t count, int32_t step) {
  Tensor bias(DType::i32, {count});
  for (int64_t i = 0; i < count; ++i) bias.mutable_data<int32_t>()[i] = static_cast<int32_t>(step * (i - 3));
  return bias;
}

struct Net : testing::PassNet {
  ValueId bytes(DType dtype, const Dims& dims) {
    Tensor tensor(dtype, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      static_cast<uint8_t*>(tensor.mutable_raw())[i] = static_cast<uint8_t>(random());
    }
    return constant(tensor);
  }
  ValueId quantize(ValueId x, float scale, uint8_t zero) {
    return op("QuantizeLinear", {x, scalar(scale), constant(Tensor::scalar(zero))});
  }
  ValueId dequantize(ValueId q, float scale, uint8_t zero) {
    return op("DequantizeLinear", {q, scalar(scale), constant(Tensor::scalar(zero))});
  }
  ValueId quantized(ValueId x, float scale, uint8_t zero) { return dequantize(quantize(x, scale, zero), scale, zero); }
  ValueId weights(const Dims& dims, int64_t axis) {
    const int64_t channels = dims[static_cast<size_t>(axis)];
    return op("DequantizeLinear",
              {bytes(DType::i8, dims), constant(scales(channels)), constant(Tensor(DType::i8, {channels}))},
              {{"axis", axis}});
  }
  // What `type` makes of an input whose scale is found at run time, and of weights, as numbers.
  ValueId dynamic(const char* type, const Dims& input_dims, const Dims& weight_dims, NamedAttributes attributes = {}) {
    const std::vector<ValueId> parts = op("DynamicQuantizeLinear", {input(input_dims)}, 3, {});
    const ValueId sums = op(type, {parts[0], bytes(DType::i8, weight_dims), parts[2]}, std::move(attributes));
    const ValueId real = op("Cast", {sums}, {{"to", int64_t{1}}});
    return op("Mul", {real, op("Mul", {parts[1], scalar(0.01F)})});
  }
};

int count(const Graph& graph, std::string_view op) {
  int found = 0;
  for (const NodeId id : graph.order()) found += graph.node(id).op->name == op;
  return found;
}

// The graph after all passes of loading.
Graph optimized(const Net& net) {
  Graph after = net.graph;
  const Limits limits;
  infer_types(after);
  run_passes(after, load_passes(), {OpRegistry::builtin(), limits, 16}, 99, {});
  verify(after);
  return after;
}

// Results of both graphs: `levels` is what one level of a quantized value on the way is worth in the result.
void expect_same_results(Net& net, const Graph& after, double levels) {
  std::vector<Tensor> inputs;
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const ValueId id : net.graph.inputs) {
    Tensor tensor(DType::f32, net.graph.value(id).type.extents());
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(net.random);
    inputs.push_back(tensor);
  }
  const auto before_results = run_reference_graph(net.graph, inputs, {});
  const auto after_results = run_reference_graph(after, inputs, {});
  for (size_t i = 0; i < before_results.size(); ++i) {
    const std::vector<double> expected = reals_of(before_results[i]), got = reals_of(after_results[i]);
    ASSERT_EQ(after_results[i].dims(), before_results[i].dims());
    for (size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], expected[k], levels) << "element " << k;
  }
}

TEST(QuantizedPasses, TurnAProductAndWhatFollowsIntoOneProductOfIntegers) {
  Net net;
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

TEST(QuantizedPasses, MoveQuantizeLinearInFrontOfAConcatSoThatConvolutionsStoreBytes) {
  Net net;
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

TEST(QuantizedPasses, LeaveAQuantizeLinearBehindAConcatThatOthersRead) {
  Net net;
  const ValueId x = net.input(Dims{1, 8, 6, 6}), y = net.input(Dims{1, 4, 6, 6});
  const ValueId whole = net.op("Concat", {x, y}, {{"axis", int64_t{1}}});
  net.graph.outputs = {net.quantize(whole, 0.02F, 100), net.op("Relu", {whole})};
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "QuantizeLinear"), 1);
  expect_same_results(net, after, 0);
}

TEST(QuantizedPasses, MoveQuantizeLinearInFrontOfTransposesAndTakeThemIntoTheProduct) {
  Net net;
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
  Net net;
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
  Net net;
  const ValueId x = net.input(Dims{3, 20});
  net.graph.outputs = {net.op("MatMul", {net.quantized(x, 0.01F, 100), net.weights({20, 12}, 0)})};
  EXPECT_EQ(count(optimized(net), "QuantizedMatMul"), 0);
}

TEST(QuantizedPasses, TurnAConvolutionWithItsResidualIntoOneOfIntegers) {
  Net net;
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

TEST(QuantizedPasses, TurnConvIntegerThatIsReadAsFloatIntoOneThatScales) {
  Net net;
  net.output(net.dynamic("ConvInteger", {1, 8, 5, 5}, {4, 8, 3, 3}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "ConvInteger"), 0);
  EXPECT_EQ(count(after, "QuantizedConv"), 1);
  expect_same_results(net, after, 1e-3);
}

TEST(QuantizedPasses, ConvolveSingleChannelsOfConvIntegerOnIntegersOrInFloat32) {
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
    const Net::NamedAttributes alone = {{"group", int64_t{8}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
    Net net;
    net.output(net.dynamic("ConvInteger", {1, 8, 15, 15}, form.weights, alone));
    const Graph after = optimized(net);
    EXPECT_EQ(count(after, "ConvInteger"), 0);
    EXPECT_EQ(count(after, form.made), 1);
    expect_same_results(net, after, 1e-4);
  }
  // Sums of so many terms have more bits than float32.
  Net large;
  large.output(large.dynamic("ConvInteger", {1, 8, 20, 20}, {8, 1, 17, 17}, {{"group", int64_t{8}}}));
  EXPECT_EQ(count(optimized(large), "ConvInteger"), 1);
}

TEST(QuantizedPasses, LeaveSumsThatAreReadAsIntegersExact) {
  for (const int64_t group : {1, 8}) {
    Net net;
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

TEST(QuantizedPasses, TakeZeroPointsOutOfWeightsThatStayBytes) {
  for (const bool fits : {true, false}) {
    Net net;
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

bool choose_layouts_once(Graph& graph, const PassContext& context) {
  EXPECT_TRUE(passes::choose_layouts(graph, context));
  return false;
}

TEST(QuantizedPasses, QuantizeDynamicallyInBlocks) {
  Net net;
  const ValueId y = net.conv(net.input(Dims{1, 3, 4, 4}), {20, 3, 1, 1});
  const std::vector<ValueId> parts = net.op("DynamicQuantizeLinear", {y}, 3, {});
  const ValueId real = net.op("Mul", {net.op("Cast", {parts[0]}, {{"to", int64_t{1}}}), parts[1]});
  net.output(net.conv(real, {16, 20, 1, 1}));
  const Graph after = testing::rewritten(net, {choose_layouts_once});
  EXPECT_EQ(testing::ops_of(after), "Conv DynamicQuantizeLinear Cast Mul Conv Reorder");
  for (const NodeId id : after.order()) {
    const Node& node = after.node(id);
    if (node.op->name != "DynamicQuantizeLinear") continue;
    EXPECT_EQ(after.value(node.outputs[0]).type.layout.channel_block, 8);
    EXPECT_EQ(after.value(node.outputs[1]).type.layout.channel_block, 0);
  }
}

TEST(QuantizedPasses, FindScalesOfBlocksThatNobodyQuantizes) {
  Net net;
  const ValueId y = net.conv(net.input(Dims{1, 3, 4, 4}), {16, 3, 1, 1});
  const std::vector<ValueId> parts = net.op("DynamicQuantizeLinear", {y}, 3, {});
  Value& unread = net.graph.value(parts[0]);
  net.graph.node(unread.producer).outputs[0] = ValueId::none;
  unread.producer = NodeId::none;
  net.output(net.conv(net.op("Mul", {y, parts[1]}), {16, 16, 1, 1}));
  const Graph after = testing::rewritten(net, {choose_layouts_once});
  EXPECT_EQ(testing::ops_of(after), "Conv Reorder DynamicQuantizeLinear Mul Conv Reorder");
}

TEST(QuantizedPasses, ReadBothBranchesOfASumAsBytes) {
  Net net;
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

TEST(QuantizedPasses, TakeQLinearConvApartOrTurnItIntoOneOfIntegers) {
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
    Net net;
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

TEST(QuantizedPasses, KeepBytesBetweenConvolutionsAcrossAMaxPool) {
  Net net;
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

TEST(QuantizedPasses, MakeSignedBytesUnsignedThatAreOnlyDequantized) {
  Net net;
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

TEST(QuantizedPasses, QuantizeAgainWhatWasDequantizedInAnotherWay) {
  Net net;
  const ValueId x = net.input(Dims{1, 8, 6, 6});
  net.graph.outputs = {net.quantized(net.quantized(x, 0.02F, 120), 0.02F, 121)};
  EXPECT_EQ(count(optimized(net), "QuantizeLinear"), 2);
}

TEST(QuantizedPasses, TurnMatMulIntegerThatIsReadAsFloatIntoAProductThatScales) {
  Net net;
  net.output(net.dynamic("MatMulInteger", {4, 32}, {32, 16}));
  const Graph after = optimized(net);
  EXPECT_EQ(count(after, "MatMulInteger"), 0);
  EXPECT_EQ(count(after, "Cast"), 0);
  expect_same_results(net, after, 1e-3);
}

// A norm whose bytes one product reads twice, and one that something else reads, too.
TEST(QuantizedPasses, TakeQuantizeLinearIntoTheNormsAndSoftmaxThatMakeItsRows) {
  Net net;
  const ValueId x = net.input(Dims{2, 8, 32}), gain = net.testing::PassNet::weights(Dims{32});
  const ValueId norm = net.op("LayerNormalization", {x, gain});
  const ValueId rows = net.quantize(norm, 0.03F, 120);
  const ValueId other = net.op("LayerNormalization", {net.op("Neg", {x}), gain});
  const ValueId soft = net.op("Softmax", {net.op("Exp", {x})});
  const ValueId across = net.op("Softmax", {net.op("Abs", {x})}, {{"axis", int64_t{1}}});
  net.graph.outputs = {rows, net.quantize(other, 0.02F, 100), other, net.quantize(soft, 0.004F, 0),
                       net.quantize(across, 0.004F, 0)};
  const Graph after = testing::rewritten(net, {passes::fuse_quantize});
  EXPECT_EQ(testing::ops_of(after),
            "LayerNormalization+QuantizeLinear Neg LayerNormalization Exp Softmax+QuantizeLinear Abs Softmax "
            "QuantizeLinear QuantizeLinear");
}

}  // namespace
}  // namespace lathe
