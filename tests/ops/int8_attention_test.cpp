// Attention over bytes, a block of rows at a time: which nodes it is, and that its results are those of each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "ops/int8/int8_attention.h"
#include "ops/int8/int8_attention_lower.h"
#include "tests/isas_here.h"
#include "tests/ops/plain_node.h"
#include "tests/ops/step_memory.h"

namespace lathe {
namespace {

using testing::int8_isas_here;
using testing::random_tensor;
using Ints = std::vector<int64_t>;

// round(x / scale) + zero, as bytes.
Epilogue rounded(float scale, float zero, DType dtype) {
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  e.output = dtype;
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const int quotient = e.add({ExprOp::div, e.add({ExprOp::input, 0}), constant(scale)});
  e.add({ExprOp::add, e.add({ExprOp::round_even, quotient}), constant(zero)});
  return epilogue;
}

struct Shape {
  Dims batch = {2, 3}, k_batch = {2, 3};
  int64_t rows = 40, keys = 48, size = 32, value_size = 32;
  DType q = DType::u8, k = DType::i8, v = DType::u8, weights = DType::u8;
  bool k_by_rows = true, has_mask = true, gives_bytes = true;
};

class Net {
 public:
  Net(const Shape& shape, uint32_t seed) : random_(seed) {
    const ValueId q = bytes(shape.q, joined(shape.batch, shape.rows, shape.size));
    const ValueId k = bytes(shape.k, shape.k_by_rows ? joined(shape.k_batch, shape.keys, shape.size)
                                                     : joined(shape.k_batch, shape.size, shape.keys));
    const ValueId v = bytes(shape.v, joined(shape.batch, shape.keys, shape.value_size));
    Node scores = product(q, k, 2e-5F, shape.q, shape.k);
    if (shape.k_by_rows) {
      Ints order;
      for (size_t axis = 0; axis < shape.batch.size(); ++axis) order.push_back(static_cast<int64_t>(axis));
      const auto rank = static_cast<int64_t>(order.size());
      order.insert(order.end(), {rank + 1, rank});
      scores.attributes.set("perm_b", order);
    }
    if (shape.has_mask) {
      scores.epilogue = testing::clipped_sum(true);
      graph.inputs.push_back(graph.add_value("mask", TensorType::of(DType::f32, {shape.rows, shape.keys})));
      scores.inputs.push_back(graph.inputs.back());
    }
    Node softmax;
    softmax.op = &OpRegistry::builtin().require("", "Softmax", 13);
    softmax.version = 13;
    softmax.epilogue = rounded(1 / 250.0F, shape.weights == DType::i8 ? -100 : 3, shape.weights);
    softmax.inputs = {add(std::move(scores), DType::f32)};
    weights_ = add(std::move(softmax), shape.weights);
    Node mix = product(weights_, v, 4e-5F, shape.weights, shape.v);
    if (shape.gives_bytes) mix.epilogue = rounded(0.02F, 128, DType::u8);
    graph.outputs = {add(std::move(mix), shape.gives_bytes ? DType::u8 : DType::f32)};
  }

  Graph graph;

  // Somebody else reads the softmax: each node is a step of its own.
  void take_apart() { graph.outputs.push_back(weights_); }

  // The first output.
  Tensor result(const LoweredGraph& lowered, uint32_t seed) const {
    std::mt19937 random(seed);
    const testing::StepMemory memory(lowered);
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const TensorType& type = graph.value(graph.inputs[i]).type;
      const Tensor tensor = type.dtype == DType::f32 ? random_tensor(type.extents(), random, -1.0F, 3.0F)
                                                     : random_bytes(type.dtype, type.extents(), random);
      testing::write_value(memory.at(lowered.inputs[i]), type, tensor);
    }
    memory.run();
    return testing::read_value(memory.at(lowered.outputs[0]), graph.value(graph.outputs[0]).type);
  }

  LoweredGraph lowered(Isa isa, int threads, size_t near_cache_bytes) {
    const Target target{isa, threads, Accuracy::normal, near_cache_bytes};
    return lower_graph(graph, {OpRegistry::builtin(), target, packed_, plans_, nullptr});
  }

 private:
  static Dims joined(Dims batch, int64_t rows, int64_t columns) {
    batch.insert(batch.end(), {rows, columns});
    return batch;
  }
  static Tensor random_bytes(DType dtype, const Dims& dims, std::mt19937& random) {
    Tensor tensor(dtype, dims);
    auto* at = static_cast<uint8_t*>(tensor.mutable_raw());
    std::generate(at, at + tensor.size(), [&] { return static_cast<uint8_t>(random() % 5 == 0 ? 0xff : random()); });
    return tensor;
  }
  ValueId bytes(DType dtype, const Dims& dims) {
    graph.inputs.push_back(graph.add_value("x" + std::to_string(graph.value_count()), TensorType::of(dtype, dims)));
    return graph.inputs.back();
  }
  ValueId zero(DType dtype) {
    return graph.add_constant("z" + std::to_string(graph.value_count()), random_bytes(dtype, {}, random_));
  }
  Node product(ValueId a, ValueId b, float scale, DType a_type, DType b_type) {
    Node node;
    node.op = &OpRegistry::builtin().require("lathe", "QuantizedMatMul", 1);
    const ValueId factor = graph.add_constant("s" + std::to_string(graph.value_count()), Tensor::scalar(scale));
    node.inputs = {a, b, factor, zero(a_type), zero(b_type)};
    return node;
  }
  ValueId add(Node node, DType dtype) {
    node.name = "n" + std::to_string(graph.value_count());
    const ValueId output = graph.add_value("y" + std::to_string(graph.value_count()), TensorType());
    node.outputs = {output};
    const NodeId id = graph.add_node(std::move(node));
    graph.value(output).type = infer_node(graph, graph.node(id))[0];
    graph.value(output).type.dtype = dtype;
    return output;
  }

  std::mt19937 random_;
  ValueId weights_ = ValueId::none;
  PackedWeights packed_;
  testing::FallbackPlans plans_;
};

int64_t attentions_in(const LoweredGraph& lowered) {
  return std::count_if(lowered.steps.begin(), lowered.steps.end(),
                       [](const Step& step) { return step.kernel.starts_with("attention int8"); });
}

// The scores of all heads may be one product then.
bool shares_all_keys(const Shape& shape) {
  return shape.batch[0] * shape.batch[1] > 1 && shape.k_batch[0] * shape.k_batch[1] == 1;
}

Shape random_shape(std::mt19937& random) {
  const auto pick = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  const auto byte = [&] { return random() % 2 == 0 ? DType::u8 : DType::i8; };
  Shape shape;
  shape.batch = shape.k_batch = {pick(2), pick(3)};
  if (random() % 4 == 0) shape.k_batch[1] = 1;  // heads that share keys
  shape.rows = pick(90);
  shape.keys = pick(random() % 8 == 0 ? 700 : 90);
  shape.size = 4 * pick(20);
  shape.value_size = pick(70);
  shape.q = byte(), shape.k = byte(), shape.v = byte(), shape.weights = byte();
  shape.k_by_rows = random() % 3 > 0;
  shape.has_mask = random() % 2 == 0;
  shape.gives_bytes = random() % 2 == 0;
  return shape;
}

TEST(Int8Attention, HasTheBitsOfItsNodesOneByOneOverRandomShapes) {
  std::mt19937 random(1);
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Shape shape = random_shape(random);
    const int threads = 1 + static_cast<int>(seed % 3);
    // Blocks of a few rows, or all at once.
    const size_t near = seed % 2 == 0 ? 4096 : 1 << 20;
    for (const Isa isa : int8_isas_here()) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << name_of(isa));
      Net together(shape, seed), apart(shape, seed);
      apart.take_apart();
      const LoweredGraph one = together.lowered(isa, threads, near), several = apart.lowered(isa, threads, near);
      if (!shares_all_keys(shape)) {
        ASSERT_EQ(attentions_in(one), has_wide_vnni(isa) ? 1 : 0);
      }
      ASSERT_EQ(attentions_in(several), 0);
      const Tensor got = together.result(one, seed), expected = apart.result(several, seed);
      ASSERT_EQ(got.dims(), expected.dims());
      const auto* left = static_cast<const uint8_t*>(got.raw());
      const auto* right = static_cast<const uint8_t*>(expected.raw());
      ASSERT_TRUE(std::equal(left, left + got.bytes(), right));
    }
  }
}

TEST(Int8Attention, LeavesOtherGraphsAlone) {
  const Shape shape;
  Net read_elsewhere(shape, 1);
  read_elsewhere.take_apart();
  EXPECT_TRUE(int8_attentions(read_elsewhere.graph, SoleReaders(read_elsewhere.graph)).empty());
  Net other_axis(shape, 1);
  for (const NodeId id : other_axis.graph.order())
    if (other_axis.graph.node(id).op->name == "Softmax") other_axis.graph.node(id).attributes.set("axis", int64_t{1});
  for (const Isa isa : int8_isas_here()) EXPECT_EQ(attentions_in(other_axis.lowered(isa, 1, 4096)), 0);
}

TEST(Int8Attention, BlocksFillTheCacheButAreNeverTooLow) {
  EXPECT_EQ(int8_attention_rows(128, 128, 256 << 10), 128);
  EXPECT_EQ(int8_attention_rows(1024, 512, 256 << 10), 102);
  EXPECT_EQ(int8_attention_rows(4096, 4096, 1 << 10), 32);
  EXPECT_EQ(int8_attention_rows(5, 4096, 1 << 10), 5);
  // Rows 4 KiB apart would share one set of L1.
  EXPECT_EQ(Int8Attention::row_bytes(4096) % 4096, 64);
  EXPECT_EQ(Int8Attention::row_bytes(197), 200);
}

}  // namespace
}  // namespace lathe
