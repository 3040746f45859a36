#include <gtest/gtest.h>

#include <random>

#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;

OneNode over_channels(const std::string& op, const Dims& dims) {
  std::mt19937 random(7);
  OneNode one;
  one.inputs = {testing::random_tensor(dims, random)};
  one.is_constant = {false};
  Attributes attributes;
  attributes.set("axis", int64_t{1});
  one.make(op, 13, attributes, {0}, 0);
  return one;
}

bool keeps_columns(const OneNode& one, Isa isa) {
  testing::FallbackPlans plans;
  PackedWeights packed;
  const LoweredGraph lowered = lower_graph(one.graph, {OpRegistry::builtin(), {isa, 1}, packed, plans, nullptr});
  return lowered.steps[0].kernel.find("columns kept") != std::string::npos;
}

TEST(SoftmaxColumns, AreKeptWherePlanesAreWholePages) {
  for (const Isa isa : isas_here()) {
    EXPECT_TRUE(keeps_columns(over_channels("Softmax", {1, 9, 32, 32}), isa));
    EXPECT_TRUE(keeps_columns(over_channels("Softmax", {1, 33, 16, 16}), isa));
    EXPECT_FALSE(keeps_columns(over_channels("Softmax", {1, 8, 32, 32}), isa)) << "L1 has room for eight";
    EXPECT_FALSE(keeps_columns(over_channels("Softmax", {1, 100, 30, 30}), isa)) << "planes lie in all sets";
    EXPECT_FALSE(keeps_columns(over_channels("Softmax", {1, 1025, 32, 32}), isa)) << "too many wait";
  }
}

TEST(SoftmaxColumns, AgreeWithTheReference) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const Dims& dims : {Dims{2, 21, 32, 32}, Dims{1, 40, 64, 16}, Dims{1, 7, 9, 31}}) {
      const OneNode one = over_channels(op, dims);
      const Tensor expected = one.expected();
      for (const Isa isa : isas_here()) {
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(::testing::Message() << op << " " << to_string(dims) << " " << name_of(isa) << " " << threads);
          const std::optional<Tensor> got = one.run(isa, threads);
          ASSERT_TRUE(got.has_value()) << "the reference would run";
          for (int64_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], 2e-6) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
