// Folding into weights of operators that the graph's own tests do not define, against their real references.
#include <gtest/gtest.h>

#include <random>

#include "graph/infer.h"
#include "graph/passes/passes.h"
#include "graph/verify.h"
#include "ops/op_def.h"

namespace lathe {
namespace {

struct Net {
  Graph graph;
  std::mt19937 random{5};

  Tensor noise(const Dims& dims, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    Tensor tensor(DType::f32, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
    return tensor;
  }
  std::string name() { return "v" + std::to_string(graph.value_count()); }
  ValueId input(const Dims& dims) {
    graph.inputs.push_back(graph.add_value(name(), TensorType::of(DType::f32, dims)));
    return graph.inputs.back();
  }
  ValueId weights(const Dims& dims, float low = -1, float high = 1) {
    return graph.add_constant(name(), noise(dims, low, high));
  }
  ValueId constant(Tensor tensor) { return graph.add_constant(name(), std::move(tensor)); }
  ValueId op(const char* type, std::vector<ValueId> inputs,
             std::vector<std::pair<const char*, Attribute>> attributes = {}) {
    const ValueId result = graph.add_value(name(), {});
    Node node{.op = &OpRegistry::builtin().require("", type, 17),
              .version = 17,
              .name = name(),
              .inputs = std::move(inputs),
              .outputs = {result}};
    for (auto& [key, value] : attributes) node.attributes.set(key, value);
    graph.add_node(std::move(node));
    return result;
  }
  ValueId batch_norm(ValueId x, int64_t channels) {
    return op("BatchNormalization",
              {x, weights({channels}), weights({channels}), weights({channels}), weights({channels}, 0.5f, 2)});
  }
};

// Runs the pass and compares results before and after.
void expect_folded(Net& net, bool (*pass)(Graph&, const PassContext&), size_t nodes) {
  Graph after = net.graph;
  const Limits limits;
  infer_types(after);
  ASSERT_TRUE(pass(after, {OpRegistry::builtin(), limits, 8}));
  verify(after);
  EXPECT_EQ(after.order().size(), nodes);
  std::vector<Tensor> inputs;
  for (const ValueId id : net.graph.inputs) inputs.push_back(net.noise(net.graph.value(id).type.extents(), -1, 1));
  const Tensor a = run_reference_graph(net.graph, inputs)[0], b = run_reference_graph(after, inputs)[0];
  ASSERT_EQ(a.dims(), b.dims());
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a.data<float>()[i], b.data<float>()[i], 2e-5) << i;
}

TEST(PassFoldBatchNorm, ScalesTransposedConvolutionsByGroup) {
  for (const int64_t group : {1, 2}) {
    Net net;
    const ValueId y =
        net.op("ConvTranspose", {net.input({2, 4, 3, 3}), net.weights({4, 3, 2, 2}), net.weights({3 * group})},
               {{"group", group}, {"strides", std::vector<int64_t>{2, 2}}});
    net.graph.outputs = {net.batch_norm(y, 3 * group)};
    expect_folded(net, passes::fold_batch_norm, 1);
  }
}

TEST(PassFoldBatchNorm, ScalesGroupedConvolutions) {
  Net net;
  const ValueId y = net.op("Conv", {net.input({1, 4, 5, 5}), net.weights({6, 2, 3, 3})}, {{"group", int64_t{2}}});
  net.graph.outputs = {net.batch_norm(y, 6)};
  expect_folded(net, passes::fold_batch_norm, 1);
}

TEST(PassFoldBatchNorm, ScalesProductsWhicheverWayTheirWeightsLie) {
  for (const int64_t transposed : {0, 1}) {
    Net net;
    const ValueId weights = net.weights(transposed ? Dims{5, 4} : Dims{4, 5});
    const ValueId y = net.op("Gemm", {net.input({3, 4}), weights, net.weights({1, 5})},
                             {{"transB", transposed}, {"alpha", 0.5f}, {"beta", 3.f}});
    net.graph.outputs = {net.batch_norm(y, 5)};
    expect_folded(net, passes::fold_batch_norm, 1);
  }
}

TEST(PassSinkShuffles, ShufflesBehindDepthwiseStrides) {
  const auto shuffled = [](Net& net, ValueId x, int64_t groups) {
    const ValueId result = net.graph.add_value(net.name(), {});
    Node node{.op = &OpRegistry::builtin().require("lathe", "ShuffleChannels", 1),
              .version = 1,
              .name = net.name(),
              .inputs = {x},
              .outputs = {result}};
    node.attributes.set("groups", groups);
    net.graph.add_node(std::move(node));
    return result;
  };
  const std::vector<std::pair<const char*, Attribute>> strided = {{"group", int64_t{12}}, {"strides", Dims{1, 2}}};
  for (const int64_t groups : {1, 3, 4}) {
    for (const bool has_bias : {false, true}) {
      Net net;
      std::vector<ValueId> inputs{shuffled(net, net.input({2, 12, 5, 7}), groups), net.weights({12, 1, 3, 3})};
      if (has_bias) inputs.push_back(net.weights({12}));
      net.graph.outputs = {net.op("Conv", inputs, strided)};
      expect_folded(net, passes::sink_shuffles, 2);
    }
  }
  const Limits limits;
  const auto is_left = [&](std::vector<std::pair<const char*, Attribute>> attributes, bool is_read_again) {
    Net net;
    const ValueId x = shuffled(net, net.input({1, 12, 5, 7}), 3);
    net.graph.outputs = {net.op("Conv", {x, net.weights({12, 1, 3, 3})}, std::move(attributes))};
    if (is_read_again) net.graph.outputs.push_back(net.op("Relu", {x}));
    infer_types(net.graph);
    return !passes::sink_shuffles(net.graph, {OpRegistry::builtin(), limits, 8});
  };
  EXPECT_TRUE(is_left(strided, true));
  EXPECT_TRUE(is_left({{"group", int64_t{12}}}, false)) << "as many pixels behind it";
  EXPECT_FALSE(is_left(strided, false));
}

Tensor random_codes(Net& net, DType dtype, const Dims& dims) {
  Tensor tensor(dtype, dims);
  for (size_t i = 0; i < tensor.bytes(); ++i)
    static_cast<uint8_t*>(tensor.mutable_raw())[i] = static_cast<uint8_t>(net.random());
  return tensor;
}

// Folds DequantizeLinear of constants and expects the reference's bits. `block` 0: a scale for each index of the axis.
void expect_dequantized(DType dtype, const Dims& dims, int64_t axis, int64_t block, bool has_zeros) {
  SCOPED_TRACE(::testing::Message() << name_of(dtype) << " axis " << axis << " block " << block << " zeros "
                                    << has_zeros);
  Net net;
  const auto at = static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis);
  Dims scales = block > 0 ? dims : Dims{dims[at]};
  if (block > 0) scales[at] = (dims[at] + block - 1) / block;
  std::vector<ValueId> inputs{net.constant(random_codes(net, dtype, dims)), net.weights(scales, 0.01f, 0.1f)};
  if (has_zeros) inputs.push_back(net.constant(random_codes(net, dtype, scales)));
  net.graph.outputs = {net.op("DequantizeLinear", inputs, {{"axis", axis}, {"block_size", block}})};
  const Tensor expected = run_reference_graph(net.graph, {})[0];
  const Limits limits;
  infer_types(net.graph, limits);
  passes::fold_constants(net.graph, {OpRegistry::builtin(), limits, 8});
  const Tensor& folded = net.graph.value(net.graph.outputs[0]).constant;
  ASSERT_TRUE(folded.defined());
  for (int64_t i = 0; i < expected.size(); ++i) ASSERT_EQ(expected.data<float>()[i], folded.data<float>()[i]) << i;
}

TEST(PassFoldConstants, DequantizesWeightsAsTheReferenceDoes) {
  for (const DType dtype : {DType::i8, DType::u8, DType::i4, DType::u4})
    for (const bool has_zeros : {false, true})
      for (const int64_t axis : {0, 1, -1})
        for (const int64_t block : {0, 2, 3}) expect_dequantized(dtype, {3, 4, 5}, axis, block, has_zeros);
}

// Eight times as large as what they are made of.
TEST(PassFoldConstants, DequantizesLargeWeightsOfFourBits) { expect_dequantized(DType::i4, {600, 700}, 0, 0, false); }

}  // namespace
}  // namespace lathe
