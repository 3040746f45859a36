// Operators that move elements, through their lowering, against their references; and the references of odd types.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lathe/error.h"
#include "tests/isas_here.h"
#include "tests/ops/plain_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::node_of;
using testing::OneNode;
using testing::random_dims;
using testing::random_tensor;

Tensor ints(std::vector<int64_t> values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values));
}

// Elements in order must be equal: nothing is computed.
void expect_moved(const OneNode& tested) {
  const Tensor expected = tested.expected();
  for (const Isa isa : isas_here()) {
    for (const int threads : {1, 2, 3}) {
      const std::optional<Tensor> result = tested.run(isa, threads);
      ASSERT_TRUE(result.has_value()) << "the reference ran";
      ASSERT_EQ(result->dims(), expected.dims());
      for (int64_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(result->data<float>()[i], expected.data<float>()[i])
            << "element " << i << ", " << threads << " threads, " << name_of(isa);
      }
    }
  }
}

TEST(Transpose, MovesRandomPermutationsOfAllRanks) {
  std::mt19937 random(11);
  for (int i = 0; i < 120; ++i) {
    const size_t rank = 1 + random() % 5;
    std::vector<int64_t> perm(rank);
    std::iota(perm.begin(), perm.end(), 0);
    std::shuffle(perm.begin(), perm.end(), random);
    Attributes attributes;
    attributes.set("perm", perm);
    const Dims dims = random_dims(random, rank, rank > 3 ? 12 : 40);
    SCOPED_TRACE(to_string(dims) + " by " + to_string(perm));
    expect_moved(node_of({random_tensor(dims, random)}, "Transpose", 13, attributes));
  }
}

TEST(Transpose, MovesAttentionHeads) {
  std::mt19937 random(12);
  for (const std::vector<int64_t>& perm : {std::vector<int64_t>{0, 2, 1, 3}, std::vector<int64_t>{0, 2, 3, 1}}) {
    Attributes attributes;
    attributes.set("perm", perm);
    expect_moved(node_of({random_tensor({1, 197, 12, 64}, random)}, "Transpose", 13, attributes));
  }
}

TEST(Transpose, TakesEmptyTensors) {
  std::mt19937 random(13);
  Attributes attributes;
  attributes.set("perm", std::vector<int64_t>{2, 0, 1});
  expect_moved(node_of({random_tensor({3, 0, 2}, random)}, "Transpose", 13, attributes));
}

TEST(Slice, TakesRandomRangesAndSteps) {
  std::mt19937 random(14);
  for (int i = 0; i < 120; ++i) {
    const size_t rank = 1 + random() % 4;
    const Dims dims = random_dims(random, rank, 20);
    std::vector<int64_t> starts, ends, steps, axes;
    for (size_t axis = 0; axis < rank; ++axis) {
      if (random() % 3 == 0) continue;
      const auto any = [&] { return static_cast<int64_t>(random() % 50) - 25; };
      starts.push_back(any());
      ends.push_back(any());
      steps.push_back(random() % 2 == 0 ? 1 : static_cast<int64_t>(random() % 7) - 3);
      if (steps.back() == 0) steps.back() = -1;
      axes.push_back(static_cast<int64_t>(axis));
    }
    if (axes.empty()) continue;
    SCOPED_TRACE(to_string(dims) + " starts " + to_string(starts) + " ends " + to_string(ends) + " steps " +
                 to_string(steps));
    expect_moved(
        node_of({random_tensor(dims, random), ints(starts), ints(ends), ints(axes), ints(steps)}, "Slice", 13, {}));
  }
}

TEST(Slice, ClampsExtremeBounds) {
  const Tensor data = Tensor::from<float>({5}, {0, 1, 2, 3, 4});
  const OneNode reversed =
      node_of({data, ints({INT64_MAX}), ints({INT64_MIN}), ints({0}), ints({-1})}, "Slice", 13, {});
  const Tensor result = reversed.expected();
  ASSERT_EQ(result.dims(), Dims{5});
  EXPECT_EQ(result.data<float>()[0], 4);
  expect_moved(reversed);
  expect_moved(node_of({data, ints({0}), ints({5}), ints({0}), ints({INT64_MIN + 1})}, "Slice", 13, {}));
}

TEST(Concat, JoinsPartsOnEveryAxis) {
  std::mt19937 random(15);
  for (int i = 0; i < 60; ++i) {
    const size_t rank = 1 + random() % 4, axis = random() % rank;
    Dims dims = random_dims(random, rank, 15);
    std::vector<Tensor> parts;
    for (size_t part = 0; part < 1 + random() % 4; ++part) {
      dims[axis] = static_cast<int64_t>(random() % 20);
      parts.push_back(random_tensor(dims, random));
    }
    Attributes attributes;
    attributes.set("axis", static_cast<int64_t>(axis));
    OneNode tested;
    tested.inputs = parts;
    tested.is_constant.assign(parts.size(), false);
    tested.make("Concat", 13, attributes, std::vector<int>(parts.size(), 0), 0);
    SCOPED_TRACE(to_string(dims) + " axis " + std::to_string(axis));
    expect_moved(tested);
  }
}

TEST(Concat, JoinsWholeChannelBlocks) {
  std::mt19937 random(16);
  for (const int64_t batch : {1, 2}) {
    OneNode tested;
    tested.inputs = {random_tensor({batch, 16, 3, 5}, random), random_tensor({batch, 32, 3, 5}, random),
                     random_tensor({batch, 5, 3, 5}, random)};
    tested.is_constant.assign(3, false);
    Attributes attributes;
    attributes.set("axis", int64_t{1});
    tested.make("Concat", 13, attributes, {16, 16, 16}, 16);
    expect_moved(tested);
  }
}

TEST(Expand, RepeatsAxes) {
  std::mt19937 random(17);
  for (int i = 0; i < 60; ++i) {
    const size_t rank = 1 + random() % 4;
    Dims target = random_dims(random, rank, 12),
         from(target.begin() + static_cast<ptrdiff_t>(random() % rank), target.end());
    for (int64_t& extent : from) extent = random() % 2 == 0 ? 1 : extent;
    SCOPED_TRACE(to_string(from) + " to " + to_string(target));
    expect_moved(node_of({random_tensor(from, random), ints(target)}, "Expand", 13, {}));
  }
}

TEST(Tile, RepeatsElements) {
  std::mt19937 random(18);
  for (int i = 0; i < 60; ++i) {
    const Dims dims = random_dims(random, 1 + random() % 4, 9), repeats = random_dims(random, dims.size(), 4);
    SCOPED_TRACE(to_string(dims) + " times " + to_string(repeats));
    expect_moved(node_of({random_tensor(dims, random), ints(repeats)}, "Tile", 13, {}));
  }
}

TEST(Pad, PadsAndCropsWithAConstant) {
  std::mt19937 random(19);
  for (int i = 0; i < 60; ++i) {
    const Dims dims = random_dims(random, 1 + random() % 4, 9);
    std::vector<int64_t> pads;
    for (size_t k = 0; k < 2 * dims.size(); ++k) {
      pads.push_back(std::max<int64_t>(static_cast<int64_t>(random() % 7) - 2, -dims[k % dims.size()] / 2));
    }
    SCOPED_TRACE(to_string(dims) + " pads " + to_string(pads));
    expect_moved(node_of({random_tensor(dims, random), ints(pads), Tensor::scalar<float>(1.5f)}, "Pad", 13, {}));
  }
}

TEST(Pad, FollowsItsModes) {
  const Tensor data = Tensor::from<float>({4}, {0, 1, 2, 3});
  const auto padded = [&](const std::string& mode) {
    Attributes attributes;
    attributes.set("mode", mode);
    const Tensor result = node_of({data, ints({3, 2})}, "Pad", 19, attributes).expected();
    const auto elements = result.elements<float>();
    return std::vector<float>(elements.begin(), elements.end());
  };
  EXPECT_EQ(padded("reflect"), (std::vector<float>{3, 2, 1, 0, 1, 2, 3, 2, 1}));
  EXPECT_EQ(padded("edge"), (std::vector<float>{0, 0, 0, 0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(padded("wrap"), (std::vector<float>{1, 2, 3, 0, 1, 2, 3, 0, 1}));
}

TEST(Pad, RefusesAnUnknownModeBeforeAnythingIsMade) {
  Attributes attributes;
  attributes.set("mode", "add");
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_THROW(node_of({Tensor::scalar<float>(1).reshaped({1}), ints({0, kHuge})}, "Pad", 19, attributes), Error);
}

TEST(Gather, TakesRowsByConstantAndLiveIndices) {
  std::mt19937 random(20);
  for (const int64_t axis : {0, 1, 2}) {
    for (const size_t count : {1, 3, 40}) {
      std::vector<int64_t> picks;
      for (size_t i = 0; i < count; ++i) picks.push_back(static_cast<int64_t>(random() % 14) - 7);
      Attributes attributes;
      attributes.set("axis", axis);
      expect_moved(node_of({random_tensor({7, 7, 7}, random), ints(picks)}, "Gather", 13, attributes));
    }
  }
}

TEST(Gather, NamesAnIndexOutOfRange) {
  std::mt19937 random(21);
  const OneNode tested = node_of({random_tensor({4, 3}, random), ints({4})}, "Gather", 13, {});
  EXPECT_THROW(tested.expected(), Error);
  EXPECT_THROW(tested.run(Isa::avx2, 1), Error);
}

TEST(Resize, MatchesItsReferencePlainAndBlocked) {
  std::mt19937 random(22);
  for (const char* mode : {"nearest", "linear"}) {
    for (const char* coordinates : {"asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"}) {
      for (const int block : {0, 8, 16}) {
        OneNode tested;
        tested.inputs = {random_tensor({2, 19, 5, 7}, random), Tensor(), Tensor(),
                         ints({2, 19, 10, 1 + static_cast<int64_t>(random() % 20)})};
        tested.is_constant = {false, true, true, true};
        Attributes attributes;
        attributes.set("mode", std::string(mode));
        attributes.set("coordinate_transformation_mode", std::string(coordinates));
        tested.make("Resize", 13, attributes, {block, 0, 0, 0}, block);
        const Tensor expected = tested.expected();
        const std::optional<Tensor> result = tested.run(Isa::avx2, 2);
        ASSERT_TRUE(result.has_value());
        for (int64_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(result->data<float>()[i], expected.data<float>()[i], 5e-7)
              << mode << " " << coordinates << " " << i;
        }
      }
    }
  }
}

// A Reorder node; `from_block` or `to_block` is 0.
OneNode reorder_node(const Tensor& data, int from_block, int to_block) {
  OneNode tested;
  tested.inputs = {data};
  tested.is_constant = {false};
  TensorType type = TensorType::of(data.dtype(), data.dims());
  type.layout.channel_block = from_block;
  Node node;
  node.op = &OpRegistry::builtin().require("lathe", "Reorder");
  node.name = "tested";
  node.inputs = {tested.graph.add_value("input", type)};
  tested.graph.inputs = node.inputs;
  type.layout.channel_block = to_block;
  node.outputs = {tested.graph.add_value("output", type)};
  tested.graph.outputs = node.outputs;
  tested.node = tested.graph.add_node(node);
  return tested;
}

TEST(Reorder, GoesBothWaysForAnyChannelsAndPixels) {
  std::mt19937 random(23);
  for (int i = 0; i < 60; ++i) {
    const Dims dims{1 + static_cast<int64_t>(random() % 2), 1 + static_cast<int64_t>(random() % 40),
                    1 + static_cast<int64_t>(random() % 15), 1 + static_cast<int64_t>(random() % 15)};
    for (const int block : {8, 16}) {
      SCOPED_TRACE(to_string(dims) + " block " + std::to_string(block));
      const Tensor data = random_tensor(dims, random);
      expect_moved(reorder_node(data, 0, block));
      expect_moved(reorder_node(data, block, 0));
    }
  }
}

TEST(Reorder, MovesBytes) {
  std::mt19937 random(25);
  for (int i = 0; i < 30; ++i) {
    const Dims dims{1 + static_cast<int64_t>(random() % 2), 1 + static_cast<int64_t>(random() % 40),
                    1 + static_cast<int64_t>(random() % 15), 1 + static_cast<int64_t>(random() % 15)};
    Tensor data(DType::u8, dims);
    for (int64_t k = 0; k < data.size(); ++k) data.mutable_data<uint8_t>()[k] = static_cast<uint8_t>(random());
    for (const auto& [from, to] : {std::pair{0, 16}, std::pair{16, 0}, std::pair{0, 8}, std::pair{8, 0}}) {
      const std::optional<Tensor> result = reorder_node(data, from, to).run(Isa::avx2, 2);
      ASSERT_TRUE(result.has_value());
      EXPECT_EQ(std::memcmp(result->raw(), data.raw(), data.bytes()), 0) << to_string(dims) << from << to;
    }
  }
}

TEST(Transpose, MovesMatricesOfBytes) {
  std::mt19937 random(26);
  for (const Dims& dims : {Dims{16, 16}, Dims{48, 33}, Dims{100, 64}, Dims{7, 200}}) {
    Tensor data(DType::u8, dims);
    for (int64_t k = 0; k < data.size(); ++k) data.mutable_data<uint8_t>()[k] = static_cast<uint8_t>(random());
    Attributes attributes;
    attributes.set("perm", std::vector<int64_t>{1, 0});
    const OneNode tested = node_of({data}, "Transpose", 13, attributes);
    const std::optional<Tensor> result = tested.run(Isa::avx2, 2);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(std::memcmp(result->raw(), tested.expected().raw(), data.bytes()), 0) << to_string(dims);
  }
}

TEST(Reorder, ZeroesTheLanesPastTheChannels) {
  std::mt19937 random(24);
  for (const Isa isa : isas_here()) {
    const int block = vector_lanes(isa);
    const Tensor data = random_tensor({1, 5, 4, 5}, random);
    const OneNode tested = reorder_node(data, 0, block);
    PackedWeights packed;
    testing::FallbackPlans plans;
    const LoweredGraph lowered = lower_graph(tested.graph, {OpRegistry::builtin(), {isa, 1}, packed, plans, nullptr});
    std::vector<float> out(static_cast<size_t>(20 * block), 9);
    std::vector<void*> addresses = {const_cast<void*>(data.raw()), out.data()};
    ASSERT_EQ(lowered.buffers.size(), 2u);
    for (const Step& step : lowered.steps) step.run({addresses.data(), 0, 1});
    for (size_t i = 0; i < out.size(); ++i) {
      if (i % static_cast<size_t>(block) < 5) continue;
      ASSERT_EQ(out[i], 0.0f) << i;
    }
  }
}

TEST(Reshape, ResolvesZerosAndMinusOne) {
  std::mt19937 random(25);
  const Tensor data = random_tensor({2, 3, 4}, random);
  EXPECT_EQ(node_of({data, ints({0, -1})}, "Reshape", 13, {}).expected().dims(), (Dims{2, 12}));
  expect_moved(node_of({data, ints({0, -1})}, "Reshape", 13, {}));
  EXPECT_THROW(node_of({data, ints({5, -1})}, "Reshape", 13, {}), Error);
  EXPECT_THROW(node_of({data, ints({-1, -1})}, "Reshape", 13, {}), Error);
  EXPECT_THROW(node_of({data, ints({2, 3, 4, 0})}, "Reshape", 13, {}), Error);
}

TEST(Reshape, CancelsSymbolsToFindTheLastExtent) {
  Graph graph;
  Node node;
  node.op = &OpRegistry::builtin().require("", "Reshape", 13);
  node.name = "tested";
  const TensorType type{DType::f32, true, {{-1, "batch"}, {-1, "length"}, {768, ""}}, {}};
  node.inputs = {graph.add_value("data", type), graph.add_constant("shape", ints({0, 0, 12, -1}))};
  node.outputs = {graph.add_value("out", {})};
  const NodeId id = graph.add_node(node);
  const TensorType result = infer_node(graph, graph.node(id))[0];
  ASSERT_EQ(result.rank(), 4);
  EXPECT_EQ(result.dims[0].symbol, "batch");
  EXPECT_EQ(result.dims[1].symbol, "length");
  EXPECT_EQ(result.dims[3].extent, 64);
}

Tensor reference_of(const std::string& op, int version, std::vector<Tensor> inputs, Attributes attributes) {
  Node node;
  node.op = &OpRegistry::builtin().require("", op, version);
  node.version = version;
  node.name = "tested";
  node.attributes = std::move(attributes);
  node.inputs.assign(inputs.size(), static_cast<ValueId>(0));
  node.outputs = {static_cast<ValueId>(1)};
  return run_reference(node, inputs, {})[0];
}

TEST(Reference, MovesStrings) {
  const std::vector<std::string> words = {"a", "b", "c", "d", "e", "f"};
  const Tensor data = Tensor::from<std::string>({2, 3}, std::span<const std::string>(words));
  const Tensor result = reference_of("Transpose", 13, {data}, {});
  ASSERT_EQ(result.dims(), (Dims{3, 2}));
  EXPECT_EQ(result.data<std::string>()[1], "d");
  EXPECT_EQ(result.data<std::string>()[4], "c");
}

TEST(Reference, MovesPackedFourBitElements) {
  Tensor data(DType::u4, {3, 3});
  auto* bytes = static_cast<uint8_t*>(data.mutable_raw());
  for (int i = 0; i < 9; ++i) bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] | (i << (i % 2 * 4)));
  const Tensor result = reference_of("Transpose", 21, {data}, {});
  ASSERT_EQ(result.dtype(), DType::u4);
  const auto* out = static_cast<const uint8_t*>(result.raw());
  const int expected[] = {0, 3, 6, 1, 4, 7, 2, 5, 8};
  for (int i = 0; i < 9; ++i) EXPECT_EQ((out[i / 2] >> (i % 2 * 4)) & 15, expected[i]);
}

}  // namespace
}  // namespace lathe
