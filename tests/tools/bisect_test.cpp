#include "tools/bisect.h"

#include <gtest/gtest.h>

#include <random>

#include "ops/op_def.h"

namespace lathe::tools {
namespace {

struct Net {
  Graph graph;
  std::mt19937 random{3};

  Tensor noise(const Dims& dims) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Tensor tensor(DType::f32, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
    return tensor;
  }
  ValueId input(const Dims& dims) {
    graph.inputs.push_back(graph.add_value("x", TensorType::of(DType::f32, dims)));
    return graph.inputs.back();
  }
  ValueId op(const std::string& name, const char* type, std::vector<ValueId> inputs) {
    Node node;
    node.op = &OpRegistry::builtin().require("", type, 17);
    node.version = 17;
    node.name = name;
    node.inputs = std::move(inputs);
    node.outputs = {graph.add_value(name + ":0", {})};
    const ValueId result = node.outputs[0];
    graph.add_node(std::move(node));
    return result;
  }
};

SessionOptions one_thread() {
  SessionOptions options;
  options.threads = 1;
  options.use_cache = false;
  return options;
}

TEST(Bisect, FindsNothingWhereNothingDeparts) {
  Net net;
  net.graph.outputs = {net.op("clamp", "Relu", {net.op("turn", "Neg", {net.input({4, 5})})})};
  EXPECT_FALSE(find_departure(net.graph, {net.noise({4, 5})}, one_thread(), {0, 0}));
}

TEST(Bisect, NamesTheFirstNodeThatDeparts) {
  Net net;
  const ValueId weights = net.graph.add_constant("w", net.noise({300, 40}));
  const ValueId product = net.op("product", "MatMul", {net.op("clamp", "Relu", {net.input({20, 300})}), weights});
  net.graph.outputs = {net.op("end", "Neg", {product})};
  // Without any tolerance the rounding of long sums is a difference.
  const auto found = find_departure(net.graph, {net.noise({20, 300})}, one_thread(), {0, 0});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Departure::Kind::node);
  EXPECT_EQ(found->name, "product");
  EXPECT_EQ(found->operation.substr(0, 13), "MatMul, gemm ");
  EXPECT_FALSE(found->difference.empty());
}

TEST(Bisect, NamesThePassWhenEachNodeIsRight) {
  Net net;
  // Exact alone: one factor, one product. Folded into one factor the rounding is another.
  const ValueId a = net.graph.add_constant("a", Tensor::scalar<float>(1.1f));
  const ValueId b = net.graph.add_constant("b", Tensor::scalar<float>(0.7f));
  net.graph.outputs = {net.op("second", "Mul", {net.op("first", "Mul", {net.input({50}), a}), b})};
  const auto found = find_departure(net.graph, {net.noise({50})}, one_thread(), {0, 0});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Departure::Kind::pass);
  EXPECT_EQ(found->name, "reassociate");
}

}  // namespace
}  // namespace lathe::tools
