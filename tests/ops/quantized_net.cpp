#include "tests/ops/quantized_net.h"

#include "ops/numbers.h"

namespace lathe::testing {

Tensor scales(int64_t count, float factor) {
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

ValueId QuantizedNet::bytes(DType dtype, const Dims& dims) {
  Tensor tensor(dtype, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    static_cast<uint8_t*>(tensor.mutable_raw())[i] = static_cast<uint8_t>(random());
  }
  return constant(tensor);
}

ValueId QuantizedNet::quantize(ValueId x, float scale, uint8_t zero) {
  return op("QuantizeLinear", {x, scalar(scale), constant(Tensor::scalar(zero))});
}

ValueId QuantizedNet::dequantize(ValueId q, float scale, uint8_t zero) {
  return op("DequantizeLinear", {q, scalar(scale), constant(Tensor::scalar(zero))});
}

ValueId QuantizedNet::quantized(ValueId x, float scale, uint8_t zero) {
  return dequantize(quantize(x, scale, zero), scale, zero);
}

ValueId QuantizedNet::weights(const Dims& dims, int64_t axis) {
  const int64_t channels = dims[static_cast<size_t>(axis)];
  return op("DequantizeLinear",
            {bytes(DType::i8, dims), constant(scales(channels)), constant(Tensor(DType::i8, {channels}))},
            {{"axis", axis}});
}

ValueId QuantizedNet::dynamic(const char* type, const Dims& input_dims, const Dims& weight_dims,
                              NamedAttributes attributes) {
  const std::vector<ValueId> parts = op("DynamicQuantizeLinear", {input(input_dims)}, 3, {});
  const ValueId sums = op(type, {parts[0], bytes(DType::i8, weight_dims), parts[2]}, std::move(attributes));
  const ValueId real = op("Cast", {sums}, {{"to", int64_t{1}}});
  return op("Mul", {real, op("Mul", {parts[1], scalar(0.01F)})});
}

int count(const Graph& graph, std::string_view op) {
  int found = 0;
  for (const NodeId id : graph.order()) found += graph.node(id).op->name == op;
  return found;
}

Graph optimized(const QuantizedNet& net) {
  Graph after = net.graph;
  const Limits limits;
  infer_types(after);
  run_passes(after, load_passes(), {OpRegistry::builtin(), limits, 16}, 99, {});
  verify(after);
  return after;
}

void expect_same_results(QuantizedNet& net, const Graph& after, double levels) {
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

}  // namespace lathe::testing
