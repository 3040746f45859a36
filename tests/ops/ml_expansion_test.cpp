// Operators of ai.onnx.ml that give way to others, or have loops of their own: the same as their references.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/expand.h"
#include "tests/ops/op_tester.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::OpTester;
using testing::PassNet;

// One node over `x`, expanded and not.
void expect_same(const char* op, Attributes attributes, const Tensor& x, int outputs = 1) {
  PassNet net;
  const ValueId from = net.input(TensorType::of(x.dtype(), x.dims()));
  Node node{.op = &OpRegistry::builtin().require("ai.onnx.ml", op, 3), .version = 3, .name = "tested"};
  node.inputs = {from};
  node.attributes = std::move(attributes);
  for (int i = 0; i < outputs; ++i) {
    node.outputs.push_back(net.graph.add_value(net.fresh(), {}));
    net.output(node.outputs.back());
  }
  net.graph.add_node(std::move(node));
  infer_types(net.graph, Limits());
  Graph after = net.graph;
  ASSERT_TRUE(expand_nodes(after, OpRegistry::builtin())) << op;
  verify(after);
  const std::vector<Tensor> inputs{x}, expected = run_reference_graph(net.graph, inputs),
                                       got = run_reference_graph(after, inputs);
  for (size_t k = 0; k < expected.size(); ++k) {
    ASSERT_EQ(got[k].dtype(), expected[k].dtype()) << op;
    ASSERT_EQ(got[k].dims(), expected[k].dims()) << op;
    const std::vector<double> a = reals_of(got[k]), b = reals_of(expected[k]);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6 * (1 + std::abs(b[i]))) << op << " at " << i;
  }
}

Tensor rows(std::mt19937& random) {
  Tensor x = testing::random_tensor({5, 3}, random, -2, 2);
  for (int i = 0; i < 3; ++i) x.mutable_data<float>()[6 + i] = 0;  // a row of zeros
  return x;
}

TEST(MlExpansion, PreparesFeatures) {
  std::mt19937 random(3);
  using Floats = std::vector<float>;
  Attributes scaler, one_for_all, binarizer, imputer, numbers;
  scaler.set("offset", Floats{0.5F, -1, 2});
  scaler.set("scale", Floats{2, 3, -1});
  expect_same("Scaler", scaler, rows(random));
  one_for_all.set("offset", Floats{0.5F});
  one_for_all.set("scale", Floats{2, 3, 4});
  expect_same("Scaler", one_for_all, rows(random));
  binarizer.set("threshold", 0.25F);
  expect_same("Binarizer", binarizer, rows(random));
  imputer.set("imputed_value_floats", Floats{7, 8, 9});
  imputer.set("replaced_value_float", std::nanf(""));
  Tensor holes = rows(random);
  holes.mutable_data<float>()[4] = holes.mutable_data<float>()[12] = std::nanf("");
  expect_same("Imputer", imputer, holes);
  numbers.set("imputed_value_floats", Floats{7});
  expect_same("Imputer", numbers, rows(random));
  for (const char* norm : {"MAX", "L1", "L2"}) {
    Attributes normalizer;
    normalizer.set("norm", std::string(norm));
    expect_same("Normalizer", normalizer, rows(random));
  }
}

TEST(MlExpansion, ScoresRows) {
  std::mt19937 random(4);
  using Floats = std::vector<float>;
  Attributes regressor;
  regressor.set("coefficients", Floats{0.5F, -1, 2, 1, 1, -0.25F});
  regressor.set("intercepts", Floats{0.5F, -3});
  regressor.set("targets", int64_t{2});
  expect_same("LinearRegressor", regressor, rows(random));
  for (const char* transform : {"NONE", "SOFTMAX", "LOGISTIC"}) {
    Attributes classifier = regressor;
    classifier.set("classlabels_ints", std::vector<int64_t>{7, -3});
    classifier.set("post_transform", std::string(transform));
    Attributes without;
    for (const auto& [name, value] : classifier)
      if (name != "targets") without.set(name, value);
    expect_same("LinearClassifier", without, rows(random), 2);
    expect_same("LinearClassifier", without, rows(random), 1);
  }
}

Tensor integers(std::vector<int64_t> values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values));
}

TEST(MlLookup, FindsIntegersNearAndFar) {
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  const std::vector<std::vector<int64_t>> keys = {{3, 1, 4, 15, 9}, {most, 0, least, 12, -5}, {7, 7, 8, 8, 7}};
  for (const std::vector<int64_t>& list : keys) {
    OpTester tester("LabelEncoder", 3, "ai.onnx.ml");
    tester.with("keys_int64s", list).with("values_floats", std::vector<float>{1, 2, 3, 4, 5});
    tester.with("default_float", -2.5F);
    tester.input(integers({9, 2, most, least, 7, 8, 0, 1, -1, 15, 16}));
    const auto made = tester.lowered(Isa::avx2, 1);
    ASSERT_TRUE(made);
    EXPECT_EQ(reals_of((*made)[0]), reals_of(tester.result()));
    OpTester hot("OneHotEncoder", 1, "ai.onnx.ml");
    hot.with("cats_int64s", list).input(integers({9, 2, most, least, 7, 8, 0, 1, -1, 15, 16}));
    const auto marked = hot.lowered(Isa::avx2, 1);
    ASSERT_TRUE(marked);
    EXPECT_EQ(reals_of((*marked)[0]), reals_of(hot.result()));
  }
}

}  // namespace
}  // namespace lathe
