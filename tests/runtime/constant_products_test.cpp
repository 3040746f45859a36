// Products of constants, which exporters leave in a graph (relative positions turned by an attention's weights), are
// computed once, when the model is loaded.
#include <gtest/gtest.h>

#include "lathe/profile.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

TEST(ProductsOfConstants, AreComputedAtLoadHoweverLarge) {
  constexpr int64_t kRows = 800, kDepth = 700;
  ModelBuilder model;
  const std::string x = model.input("x", {3, kRows});
  const std::string product =
      model.node("MatMul", {model.random_weight({kRows, kDepth}, 0.1F), model.random_weight({kDepth, kRows}, 0.1F)});
  model.output(model.node(
      "Add", {model.node("MatMul", {x, product}), model.node("ReduceSum", {product}).with("keepdims", int64_t{0})}));
  const std::string bytes = model.bytes(13);
  const auto load = [&](int level) {
    return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 2, .optimization_level = level});
  };
  const std::vector<Tensor> input = {random_input({3, kRows}, 1)};
  Profile profile;
  const Tensor expected = load(0).run(input)[0], got = load(99).run_profiled(input, profile)[0];
  for (int64_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], 2e-3) << "element " << i;
  int products = 0;
  for (const auto& step : profile.steps) products += step.op.find("MatMul") != std::string::npos ? 1 : 0;
  EXPECT_EQ(products, 1);
}

// What networks with standardized weights leave to whoever runs them; and a node whose result's shape depends on data,
// for which there is no code.
TEST(WeightsMadeOfWeights, AreComputedAtLoad) {
  constexpr int64_t kRows = 300, kColumns = 700;
  ModelBuilder model;
  const std::string x = model.input("x", {3, kColumns});
  const std::string raw = model.random_weight({kRows, kColumns}, 0.1F);
  const auto mean = [&](const std::string& of) -> std::string {
    return model.node("ReduceMean", {of}).with("axes", {1});
  };
  const std::string centred = model.node("Sub", {raw, mean(raw)});
  const std::string deviation = model.node("Sqrt", {mean(model.node("Mul", {centred, centred}))});
  const std::string weights = model.node("Transpose", {model.node("Div", {centred, deviation})});
  const std::string count = model.node("ReduceMax", {model.node("NonZero", {raw})}).with("keepdims", int64_t{0});
  const std::string last = model.node("Cast", {count}).with("to", int64_t{1});
  model.output(model.node("Add", {model.node("MatMul", {x, weights}), last}));
  const std::string bytes = model.bytes(13);
  const auto load = [&](int level) {
    return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 2, .optimization_level = level});
  };
  const std::vector<Tensor> input = {random_input({3, kColumns}, 1)};
  Profile profile;
  const Tensor expected = load(0).run(input)[0], got = load(99).run_profiled(input, profile)[0];
  for (int64_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], 1e-3) << "element " << i;
  for (const auto& step : profile.steps) EXPECT_NE(step.op.find("MatMul"), std::string::npos) << step.op;
}

}  // namespace
}  // namespace lathe
