// Pointwise work that reads a Resize's small picture again and again: what it takes so, and that results are those of
// each node by itself.
#include "ops/resize/repeated_pixels.h"

#include <gtest/gtest.h>

#include "tests/isas_here.h"
#include "tests/ops/plain_node.h"
#include "tests/ops/step_memory.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::random_tensor;
using Repeats = std::vector<int64_t>;

// Values in blocks of channels; operands of one element per channel, or per nothing at all, too.
class Net {
 public:
  Net(Isa isa, uint32_t seed) : isa_(isa), random_(seed) {}

  Graph graph;

  ValueId input(const Dims& dims, bool is_blocked = true) {
    TensorType type = TensorType::of(DType::f32, dims);
    if (is_blocked) type.layout.channel_block = vector_lanes(isa_);
    graph.inputs.push_back(graph.add_value("x" + std::to_string(graph.value_count()), type));
    return graph.inputs.back();
  }
  ValueId resize(ValueId x, const Repeats& repeats, const char* mode = "nearest") {
    std::vector<float> scales{1, 1};
    for (const int64_t repeat : repeats) scales.push_back(static_cast<float>(repeat));
    Node node;
    node.attributes.set("mode", std::string(mode));
    node.attributes.set("coordinate_transformation_mode", std::string("asymmetric"));
    node.attributes.set("nearest_mode", std::string("floor"));
    const Tensor values = Tensor::from<float>({static_cast<int64_t>(scales.size())}, scales);
    node.inputs = {x, ValueId::none, graph.add_constant("s" + std::to_string(graph.value_count()), values)};
    return add("Resize", std::move(node));
  }
  ValueId op(const char* name, std::vector<ValueId> inputs) {
    Node node;
    node.inputs = std::move(inputs);
    return add(name, std::move(node));
  }
  void output(ValueId id) { graph.outputs.push_back(id); }

  LoweredGraph lowered(int threads) {
    return lower_graph(graph, {OpRegistry::builtin(), {isa_, threads}, packed_, plans_, nullptr});
  }

  // On guarded memory.
  void check(int threads) {
    std::vector<Tensor> inputs;
    for (const ValueId id : graph.inputs) inputs.push_back(random_tensor(graph.value(id).type.extents(), random_));
    const LoweredGraph steps = lowered(threads);
    const testing::StepMemory memory(steps);
    for (size_t i = 0; i < inputs.size(); ++i)
      testing::write_value(memory.at(steps.inputs[i]), graph.value(graph.inputs[i]).type, inputs[i]);
    memory.run();
    const Tensor expected = run_reference_graph(graph, inputs)[0];
    const Tensor got = testing::read_value(memory.at(steps.outputs[0]), graph.value(graph.outputs[0]).type);
    ASSERT_EQ(got.dims(), expected.dims());
    for (int64_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], 1e-6) << "element " << i;
  }

 private:
  ValueId add(const std::string& op, Node node) {
    node.op = &OpRegistry::builtin().require("", op, 13);
    node.version = 13;
    node.name = "n" + std::to_string(graph.value_count());
    const ValueId output = graph.add_value("y" + std::to_string(graph.value_count()), TensorType());
    node.outputs = {output};
    const NodeId id = graph.add_node(std::move(node));
    graph.value(output).type = infer_node(graph, graph.node(id))[0];
    graph.value(output).type.layout.channel_block = vector_lanes(isa_);
    return output;
  }

  Isa isa_;
  std::mt19937 random_;
  PackedWeights packed_;
  testing::FallbackPlans plans_;
};

TEST(RepeatedPixels, AreReadWhereTheyLie) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Dims small{pick(1, 3), pick(1, 50), pick(1, 7), pick(1, 9)};
    const Repeats repeats{pick(1, 4), pick(1, 4)};
    const Dims large{small[0], small[1], small[2] * repeats[0], small[3] * repeats[1]};
    const int64_t further = pick(0, 3);
    const bool has_both = further == 0 && pick(0, 1) == 0;
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << to_string(large) << " " << name_of(isa));
      Net net(isa, seed);
      const ValueId x = net.resize(net.input(small), repeats);
      ValueId other = net.input(large);
      if (has_both) other = net.resize(net.input(small), repeats);
      if (further == 1) other = net.input({1, large[1], 1, 1});
      if (further == 2) other = net.input({large[1], 1, 1}, false);
      if (further == 3) other = x;
      net.output(net.op("Add", {other, x}));
      EXPECT_EQ(net.lowered(1).steps.size(), 1U);
      for (const int threads : {1, 3}) net.check(threads);
    }
  }
}

TEST(RepeatedPixels, ThreeAxesAndOne) {
  for (const Isa isa : isas_here()) {
    Net volume(isa, 1);
    volume.output(
        volume.op("Mul", {volume.resize(volume.input({1, 20, 2, 3, 4}), {2, 1, 3}), volume.input({1, 20, 4, 3, 12})}));
    EXPECT_EQ(volume.lowered(1).steps.size(), 1U);
    volume.check(2);
    Net line(isa, 2);
    line.output(line.op("Mul", {line.input({2, 9, 10}), line.resize(line.input({2, 9, 5}), {2})}));
    EXPECT_EQ(line.lowered(1).steps.size(), 1U);
    line.check(2);
  }
}

TEST(RepeatedPixels, OtherRepeatsAreWritten) {
  for (const Isa isa : isas_here()) {
    Net net(isa, 1);
    const ValueId a = net.resize(net.input({1, 20, 4, 4}), {2, 2}), b = net.resize(net.input({1, 20, 2, 8}), {4, 1});
    net.output(net.op("Sub", {a, b}));
    EXPECT_EQ(net.lowered(1).steps.size(), 2U);
    net.check(1);
  }
}

TEST(RepeatedPixels, WhatOthersReadIsWritten) {
  for (const Isa isa : isas_here()) {
    Net twice(isa, 1);
    const ValueId x = twice.resize(twice.input({1, 20, 4, 4}), {2, 2});
    twice.output(twice.op("Add", {twice.op("Relu", {x}), x}));
    EXPECT_EQ(twice.lowered(1).steps.size(), 3U);
    twice.check(1);
    Net result(isa, 2);
    const ValueId y = result.resize(result.input({1, 20, 4, 4}), {2, 2});
    result.output(result.op("Relu", {y}));
    result.output(y);
    EXPECT_EQ(result.lowered(1).steps.size(), 2U);
    result.check(1);
    Net linear(isa, 3);
    linear.output(linear.op("Relu", {linear.resize(linear.input({1, 20, 4, 4}), {2, 2}, "linear")}));
    EXPECT_EQ(linear.lowered(1).steps.size(), 2U);
    linear.check(1);
    Net wider(isa, 4);  // the result is larger than what is repeated
    wider.output(wider.op("Add", {wider.resize(wider.input({1, 20, 1, 4}), {1, 2}), wider.input({1, 20, 3, 8})}));
    EXPECT_EQ(wider.lowered(1).steps.size(), 2U);
    wider.check(1);
  }
}

TEST(RepeatedPixels, NoPixels) {
  for (const Isa isa : isas_here()) {
    Net net(isa, 1);
    net.output(net.op("Add", {net.resize(net.input({0, 20, 4, 4}), {2, 2}), net.input({0, 20, 8, 8})}));
    net.check(1);
  }
}

}  // namespace
}  // namespace lathe
