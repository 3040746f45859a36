// Bytes whose zero point a run finds: one way to multiply them is gone, and which depends on the zero point.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/isa_runner.h"

namespace lathe {
namespace {

constexpr int64_t kRows = 40, kDepth = 96, kColumns = 64;

testing::ModelBuilder quantized_product() {
  testing::ModelBuilder model;
  const std::string x = model.input("x", {kRows, kDepth});
  const auto bytes = model.node("DynamicQuantizeLinear", {x}, 3);
  Tensor weights(DType::i8, {kDepth, kColumns});
  for (int64_t i = 0; i < weights.size(); ++i)
    weights.mutable_data<int8_t>()[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  const std::string sums = model.node("MatMulInteger", {bytes.result(0), model.weight(weights), bytes.result(2)});
  const std::string scale = model.node("Mul", {bytes.result(1), model.weight(Tensor::scalar(0.01F))});
  model.output(model.node("Mul", {model.node("Cast", {sums}).with("to", int64_t{1}), scale}));
  return model;
}

class DynamicZero : public ::testing::Test {
 protected:
  // Of x from `low` to `high`: the kernels of the product's steps that ran.
  std::string kernels(float low, float high) {
    Tensor x(DType::f32, {kRows, kDepth});
    for (int64_t i = 0; i < x.size(); ++i)
      x.mutable_data<float>()[i] = low + (high - low) * static_cast<float>(i * 7919 % 1001) / 1000;
    std::vector<Tensor> outputs(1);
    Profile profile;
    runner_.run(std::span(&x, 1), outputs, &profile);
    const std::vector<Tensor> expected = run_reference_graph(*model_.graph, std::span(&x, 1));
    for (int64_t i = 0; i < expected[0].size(); ++i)
      EXPECT_NEAR(outputs[0].data<float>()[i], expected[0].data<float>()[i], 1e-3) << "element " << i;
    std::string text;
    for (const auto& step : profile.steps)
      if (step.op.starts_with("MatMulInteger")) text += step.kernel + "; ";
    return text;
  }

  const Model model_ = testing::imported(quantized_product());
  const std::shared_ptr<RunnerContext> context_ = testing::context_for({Isa::avx2, 1});
  GraphRunner runner_{std::make_unique<Graph>(*model_.graph), context_};
};

TEST_F(DynamicZero, OneWayIsGone) {
  const auto count = [](const std::string& text, const std::string& what) {
    int found = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
    return found;
  };
  const std::string near_0 = kernels(-0.1F, 1), around = kernels(-1, 1), near_255 = kernels(-1, 0.1F);
  for (const std::string& text : {near_0, around, near_255}) EXPECT_EQ(count(text, "gemm int8"), 1) << text;
  EXPECT_EQ(count(near_0, "gemm int8 u8s8_halved"), 1) << near_0;
  EXPECT_EQ(count(near_0, "invert rows"), 0) << near_0;
  EXPECT_EQ(count(around, "gemm int8 s8u8_halved"), 1) << around;
  EXPECT_EQ(count(near_255, "gemm int8 u8s8_halved"), 1) << near_255;
  EXPECT_EQ(count(near_255, "invert rows"), 1) << near_255;
}

}  // namespace
}  // namespace lathe
