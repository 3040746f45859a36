#pragma once
// Graphs of real operators for the tests of passes: built node by node, rewritten, and compared through references.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "graph/passes/passes.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "ops/op_def.h"
#include "src/base/half.h"

namespace lathe::testing {

struct PassNet {
  Graph graph;
  std::mt19937 random{5};

  Tensor noise(const Dims& dims, float low = -1, float high = 1) {
    std::uniform_real_distribution<float> uniform(low, high);
    Tensor tensor(DType::f32, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
    return tensor;
  }
  std::string fresh() const { return "v" + std::to_string(graph.value_count()); }
  ValueId input(const Dims& dims) { return input(TensorType::of(DType::f32, dims)); }
  ValueId input(TensorType type) {
    graph.inputs.push_back(graph.add_value(fresh(), std::move(type)));
    return graph.inputs.back();
  }
  ValueId weights(const Dims& dims, float low = -1, float high = 1) {
    return graph.add_constant(fresh(), noise(dims, low, high));
  }
  ValueId scalar(float value) { return graph.add_constant(fresh(), Tensor::scalar<float>(value)); }
  ValueId integers(const std::vector<int64_t>& values) {
    return graph.add_constant(fresh(), Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }
  ValueId constant(Tensor tensor) { return graph.add_constant(fresh(), std::move(tensor)); }

  using NamedAttributes = std::vector<std::pair<const char*, Attribute>>;
  std::vector<ValueId> op(const char* type, std::vector<ValueId> inputs, int outputs, NamedAttributes attributes,
                          int version = 17) {
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
  ValueId op(const char* type, std::vector<ValueId> inputs, NamedAttributes attributes = {}, int version = 17) {
    return op(type, std::move(inputs), 1, std::move(attributes), version)[0];
  }
  ValueId transpose(ValueId x, std::vector<int64_t> perm) { return op("Transpose", {x}, {{"perm", std::move(perm)}}); }
  ValueId reshape(ValueId x, const std::vector<int64_t>& dims) { return op("Reshape", {x, integers(dims)}); }
  // Random weights of these extents, and a bias.
  ValueId conv(ValueId x, const Dims& extents, NamedAttributes attributes = {}, bool has_bias = true) {
    std::vector<ValueId> operands{x, weights(extents)};
    if (has_bias) operands.push_back(weights({extents[0]}));
    return op("Conv", operands, std::move(attributes));
  }
  void output(ValueId id) { graph.outputs.push_back(id); }
};

// "MatMul+Add Relu": what each node was made of, in order.
inline std::string ops_of(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    text += (text.empty() ? "" : " ") + (node.fused_from.empty() ? std::string(node.op->name) : node.fused_from);
  }
  return text;
}

inline Tensor as_bfloat(const Tensor& tensor) {
  Tensor narrow(DType::bf16, tensor.dims());
  for (int64_t i = 0; i < tensor.size(); ++i)
    static_cast<uint16_t*>(narrow.mutable_raw())[i] = float_to_bfloat(tensor.data<float>()[i]);
  return narrow;
}

using PassFn = bool(Graph&, const PassContext&);

// Runs the passes on a copy, each as often as it fires, and expects the same results from before and after. Returns the
// graph after. `tolerance`: of the largest result.
inline Graph rewritten(PassNet& net, const std::vector<PassFn*>& passes, double tolerance = 2e-5) {
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
