// Softmax, normalizations and reductions through their lowering, against their references (in float64).
#include <gtest/gtest.h>

#include "lathe/error.h"
#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"
#include "tests/ops/plain_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::node_of;
using testing::OneNode;
using testing::random_tensor;

// Relative to the largest element, `bound` for each of `terms` roundings.
void expect_close(const OneNode& tested, int64_t terms) {
  const Tensor expected = tested.expected();
  float largest = 1e-30f;
  for (const float value : expected.elements<float>()) largest = std::max(largest, std::abs(value));
  const float bound = largest * 6e-8f * static_cast<float>(terms + 20);
  for (const Isa isa : isas_here()) {
    for (const int threads : {1, 3}) {
      const std::optional<Tensor> result = tested.run(isa, threads);
      ASSERT_TRUE(result.has_value()) << "the reference ran";
      ASSERT_EQ(result->dims(), expected.dims());
      for (int64_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(result->data<float>()[i], expected.data<float>()[i], bound)
            << "element " << i << ", " << threads << " threads, " << name_of(isa);
      }
    }
  }
}

Attributes with(const std::string& name, Attribute value) {
  Attributes attributes;
  attributes.set(name, std::move(value));
  return attributes;
}

TEST(Softmax, NormalizesAnyAxis) {
  std::mt19937 random(31);
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const int version : {11, 13}) {
      for (int64_t axis = -3; axis < 3; ++axis) {
        if (version == 11 && axis < 0) continue;
        expect_close(node_of({random_tensor({6, 17, 70}, random, -4, 4)}, op, version, with("axis", axis)), 100);
      }
    }
  }
}

TEST(Softmax, SplitsLargeTensorsOverThreads) {
  std::mt19937 random(32);
  expect_close(node_of({random_tensor({12, 128, 128}, random, -4, 4)}, "Softmax", 13, with("axis", int64_t{-1})), 40);
  expect_close(node_of({random_tensor({1, 16, 4, 840}, random, -4, 4)}, "Softmax", 13, with("axis", int64_t{1})), 40);
  for (const int64_t heads : {2, 3, 4, 8, 12, 20}) {
    SCOPED_TRACE(heads);
    const Tensor scores = random_tensor({2, 31, 67, heads}, random, -4, 4);
    expect_close(node_of({scores}, "Softmax", 13, with("axis", int64_t{2})), 40);
  }
}

TEST(Reduce, MatchesItsReferenceOverAnyAxes) {
  std::mt19937 random(33);
  const char* ops[] = {"ReduceSum",       "ReduceMean", "ReduceMax", "ReduceMin",   "ReduceProd",
                       "ReduceSumSquare", "ReduceL1",   "ReduceL2",  "ReduceLogSum"};
  for (const char* op : ops) {
    for (int mask = 1; mask < 16; ++mask) {
      std::vector<int64_t> axes;
      for (int64_t axis = 0; axis < 4; ++axis) {
        if (mask >> axis & 1) axes.push_back(axis - (random() % 2 == 0 ? 4 : 0));
      }
      Attributes attributes = with("axes", axes);
      attributes.set("keepdims", static_cast<int64_t>(random() % 2));
      const Dims dims{1 + static_cast<int64_t>(random() % 4), 1 + static_cast<int64_t>(random() % 9),
                      1 + static_cast<int64_t>(random() % 20), 1 + static_cast<int64_t>(random() % 40)};
      const bool is_product = std::string(op) == "ReduceProd";
      SCOPED_TRACE(std::string(op) + " " + to_string(dims) + " axes " + to_string(axes));
      expect_close(node_of({random_tensor(dims, random, is_product ? 0.9f : 0.1f, is_product ? 1.1f : 2.0f)}, op, 11,
                           attributes),
                   dims[0] * dims[1] * dims[2] * dims[3]);
    }
  }
}

TEST(LayerNormalization, MatchesItsReference) {
  std::mt19937 random(34);
  for (const int64_t columns : {1, 7, 64, 384, 768, 1001}) {
    for (const bool has_bias : {false, true}) {
      std::vector<Tensor> inputs = {random_tensor({2, 33, columns}, random), random_tensor({columns}, random)};
      if (has_bias) inputs.push_back(random_tensor({columns}, random));
      expect_close(node_of(inputs, "LayerNormalization", 17, {}), columns + 100);
    }
    expect_close(
        node_of({random_tensor({9, columns}, random), random_tensor({columns}, random)}, "RMSNormalization", 23, {}),
        columns + 100);
  }
}

TEST(GroupNormalization, MatchesItsReference) {
  std::mt19937 random(35);
  for (const int64_t groups : {1, 2, 4, 12}) {
    expect_close(
        node_of({random_tensor({2, 12, 9, 7}, random), random_tensor({12}, random), random_tensor({12}, random)},
                "GroupNormalization", 21, with("num_groups", groups)),
        800);
    expect_close(node_of({random_tensor({2, 12, 9, 7}, random), random_tensor({groups}, random),
                          random_tensor({groups}, random)},
                         "GroupNormalization", 18, with("num_groups", groups)),
                 800);
  }
  expect_close(node_of({random_tensor({2, 70, 9}, random), random_tensor({70}, random), random_tensor({70}, random)},
                       "InstanceNormalization", 6, {}),
               200);
}

TEST(Reduce, WorksOnEachElementWhereItReducesNoAxis) {
  const Tensor x = Tensor::from<float>({2, 2}, {-1, 2, -3, 0.5F});
  const std::pair<const char*, std::vector<float>> cases[] = {
      {"ReduceSum", {-1, 2, -3, 0.5F}}, {"ReduceMax", {-1, 2, -3, 0.5F}},      {"ReduceL1", {1, 2, 3, 0.5F}},
      {"ReduceL2", {1, 2, 3, 0.5F}},    {"ReduceSumSquare", {1, 4, 9, 0.25F}}, {"ReduceLogSumExp", {-1, 2, -3, 0.5F}}};
  for (const auto& [op, expected] : cases) {
    for (const int64_t keepdims : {0, 1}) {
      Attributes attributes = with("noop_with_empty_axes", int64_t{1});
      attributes.set("keepdims", keepdims);
      const OneNode tested = node_of({x}, op, 18, attributes);
      ASSERT_EQ(tested.expected().dims(), x.dims()) << op;
      for (int64_t i = 0; i < x.size(); ++i) {
        EXPECT_FLOAT_EQ(tested.expected().data<float>()[i], expected[static_cast<size_t>(i)]) << op;
      }
      for (const Isa isa : isas_here()) {
        const std::optional<Tensor> result = tested.run(isa, 1);
        if (!result) continue;
        for (int64_t i = 0; i < x.size(); ++i) {
          EXPECT_FLOAT_EQ(result->data<float>()[i], expected[static_cast<size_t>(i)]) << op;
        }
      }
    }
  }
}

TEST(BatchNormalization, MatchesItsReference) {
  std::mt19937 random(36);
  expect_close(node_of({random_tensor({2, 19, 5, 5}, random), random_tensor({19}, random), random_tensor({19}, random),
                        random_tensor({19}, random), random_tensor({19}, random, 0.2f, 2)},
                       "BatchNormalization", 9, {}),
               20);
}

TEST(LocalResponse, MatchesItsReference) {
  std::mt19937 random(37);
  for (const int64_t size : {1, 2, 5, 40}) {
    Attributes attributes = with("size", size);
    attributes.set("alpha", 0.5f);
    expect_close(node_of({random_tensor({2, 11, 5, 5}, random, -3, 3)}, "LRN", 13, attributes), 60);
  }
}

TEST(LayerNormalization, HasStatisticsInTheTypeOfItsFirstStage) {
  testing::OpTester node("LayerNormalization", 17);
  node.input(Tensor::from<double>({1, 2}, {1, 3})).input(Tensor::from<double>({2}, {1, 1})).outputs(3);
  const std::vector<Tensor> results = node.reference();
  EXPECT_EQ(results[0].dtype(), DType::f64);
  ASSERT_EQ(results[1].dtype(), DType::f32);
  EXPECT_EQ(results[1].data<float>()[0], 2);
  EXPECT_EQ(results[2].dtype(), DType::f32);
}

TEST(Normalization, RefusesParametersThatDoNotFit) {
  std::mt19937 random(38);
  const Tensor data = random_tensor({2, 12, 4}, random);
  EXPECT_THROW(node_of({data, random_tensor({5}, random)}, "LayerNormalization", 17, {}), Error);
  EXPECT_THROW(
      node_of({data, random_tensor({11}, random), random_tensor({12}, random)}, "InstanceNormalization", 6, {}), Error);
  EXPECT_THROW(node_of({data, random_tensor({12}, random), random_tensor({12}, random)}, "GroupNormalization", 21,
                       with("num_groups", int64_t{5})),
               Error);
  EXPECT_THROW(node_of({data, random_tensor({12}, random), random_tensor({12}, random)}, "GroupNormalization", 18,
                       with("num_groups", int64_t{4})),
               Error);
}

}  // namespace
}  // namespace lathe
