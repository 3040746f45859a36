#include "tests/ops/pass_net.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/half.h"

namespace lathe::testing {
namespace {

Tensor as_bfloat(const Tensor& tensor) {
  Tensor narrow(DType::bf16, tensor.dims());
  for (int64_t i = 0; i < tensor.size(); ++i)
    static_cast<uint16_t*>(narrow.mutable_raw())[i] = float_to_bfloat(tensor.data<float>()[i]);
  return narrow;
}

}  // namespace

Tensor PassNet::noise(const Dims& dims, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

ValueId PassNet::input(TensorType type) {
  graph.inputs.push_back(graph.add_value(fresh(), std::move(type)));
  return graph.inputs.back();
}

ValueId PassNet::weights(const Dims& dims, float low, float high) {
  return graph.add_constant(fresh(), noise(dims, low, high));
}

ValueId PassNet::scalar(float value) { return graph.add_constant(fresh(), Tensor::scalar<float>(value)); }

ValueId PassNet::integers(const std::vector<int64_t>& values) {
  return graph.add_constant(fresh(), Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId PassNet::constant(Tensor tensor) { return graph.add_constant(fresh(), std::move(tensor)); }

std::vector<ValueId> PassNet::op(const char* type, std::vector<ValueId> inputs, int outputs, NamedAttributes attributes,
                                 int version) {
  Node node;
  node.op = &OpRegistry::builtin().require("", type, version);
  node.version = version;
  node.name = "n" + fresh();
  node.inputs = std::move(inputs);
  for (auto& [key, value] : attributes) node.attributes.set(key, value);
  for (int i = 0; i < outputs; ++i) node.outputs.push_back(graph.add_value(fresh(), {}));
  const std::vector<ValueId> results = node.outputs;
  graph.add_node(std::move(node));
  return results;
}

ValueId PassNet::op(const char* type, std::vector<ValueId> inputs, NamedAttributes attributes, int version) {
  return op(type, std::move(inputs), 1, std::move(attributes), version)[0];
}

ValueId PassNet::transpose(ValueId x, std::vector<int64_t> perm) {
  return op("Transpose", {x}, {{"perm", std::move(perm)}});
}

ValueId PassNet::reshape(ValueId x, const std::vector<int64_t>& dims) { return op("Reshape", {x, integers(dims)}); }

ValueId PassNet::conv(ValueId x, const Dims& extents, NamedAttributes attributes, bool has_bias) {
  std::vector<ValueId> operands{x, weights(extents)};
  if (has_bias) operands.push_back(weights({extents[0]}));
  return op("Conv", operands, std::move(attributes));
}

std::string ops_of(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    text += (text.empty() ? "" : " ") + (node.fused_from.empty() ? std::string(node.op->name) : node.fused_from);
  }
  return text;
}

Graph rewritten(PassNet& net, const std::vector<PassFn*>& passes, double tolerance) {
  Graph after = net.graph;
  const Limits limits;
  const PassContext context{OpRegistry::builtin(), limits, 8};
  infer_types(after, limits);
  for (PassFn* pass : passes) {
    for (int i = 0; i < 4 && pass(after, context); ++i) {
      verify(after);
      infer_types(after, limits);
    }
  }
  std::vector<Tensor> inputs;
  for (const ValueId id : net.graph.inputs) {
    const TensorType& type = net.graph.value(id).type;
    Dims dims;
    for (const Dim& dim : type.dims) dims.push_back(dim.known() ? dim.extent : 3);
    inputs.push_back(type.dtype == DType::bf16 ? as_bfloat(net.noise(dims)) : net.noise(dims));
  }
  const std::vector<Tensor> before = run_reference_graph(net.graph, inputs), now = run_reference_graph(after, inputs);
  EXPECT_EQ(before.size(), now.size());
  for (size_t output = 0; output < before.size(); ++output) {
    const Tensor &a = before[output], &b = now[output];
    EXPECT_EQ(a.dims(), b.dims()) << "output " << output;
    if (a.dims() != b.dims() || (a.dtype() != DType::f32 && a.dtype() != DType::bf16)) continue;
    const auto at = [](const Tensor& tensor, int64_t i) {
      if (tensor.dtype() == DType::f32) return tensor.data<float>()[i];
      return bfloat_to_float(static_cast<const uint16_t*>(tensor.raw())[i]);
    };
    double largest = 1;
    for (int64_t i = 0; i < a.size(); ++i) largest = std::max<double>(largest, std::abs(at(a, i)));
    for (int64_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(at(a, i), at(b, i), tolerance * largest) << "output " << output << " at " << i;
      if (::testing::Test::HasFailure()) return after;
    }
  }
  return after;
}

}  // namespace lathe::testing
