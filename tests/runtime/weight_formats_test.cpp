// Which format weights take: by their elements, their size and the accuracy level.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "lathe/profile.h"
#include "src/base/half.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

constexpr int64_t kDepth = 512;

// The format in the plan's text; empty: float32.
std::string format_of(testing::ModelBuilder& model, const Dims& input, Accuracy accuracy) {
  SessionOptions options;
  options.threads = 1;
  options.use_cache = false;
  options.accuracy = accuracy;
  Profile profile;
  const std::vector<Tensor> in{testing::random_input(input, 3)};
  (void)model.load(options).run_profiled(in, profile);
  for (const std::string format : {"bfp20", "bfp24", "bf16", "f16"}) {
    for (const StepTime& step : profile.steps)
      if ((step.kernel + " ").find(" " + format + " ") != std::string::npos) return format;
  }
  return "";
}

std::string format_of(const Tensor& weights, Accuracy accuracy, int64_t rows = 1) {
  testing::ModelBuilder model;
  model.output(model.node("MatMul", {model.input("x", {rows, kDepth}), model.weight(weights)}));
  return format_of(model, {rows, kDepth}, accuracy);
}

std::string format_of_conv(const Tensor& windows, Accuracy accuracy) {
  const int64_t channels = windows.dims()[1];
  testing::ModelBuilder model;
  model.output(
      model.node("Conv", {model.input("x", {1, channels, 7, 7}), model.weight(windows)}).with("pads", {1, 1, 1, 1}));
  return format_of(model, {1, channels, 7, 7}, accuracy);
}

TEST(WeightFormats, AreThoseOfTheElements) {
  const Tensor plain = testing::random_input({kDepth, 640}, 1);
  Tensor halves(DType::f32, plain.dims()), bfloats(DType::f32, plain.dims());
  for (int64_t i = 0; i < plain.size(); ++i) {
    halves.mutable_data<float>()[i] = half_to_float(float_to_half(plain.data<float>()[i]));
    bfloats.mutable_data<float>()[i] = bfloat_to_float(float_to_bfloat(plain.data<float>()[i] * 0x1p-40F));
  }
  for (const Accuracy accuracy : {Accuracy::strict, Accuracy::normal}) {
    EXPECT_EQ(format_of(halves, accuracy), "f16");
    EXPECT_EQ(format_of(bfloats, accuracy), "bf16");
  }
  EXPECT_EQ(format_of(plain, Accuracy::strict), "");
  EXPECT_EQ(format_of(plain, Accuracy::normal), "bfp20");
  EXPECT_EQ(format_of(testing::random_input({kDepth, 64}, 1), Accuracy::normal), "") << "caches hold it";
}

// Whether 24 bits pay is another question, which depends on the core.
TEST(WeightFormats, AreFloat32WhereBlocksCannotHoldAnElementOrTheLevelIsStrict) {
  Tensor weights = testing::random_input({kDepth, 640}, 1), windows = testing::random_input({512, 512, 3, 3}, 2);
  EXPECT_EQ(format_of(weights, Accuracy::strict, 12), "");
  EXPECT_EQ(format_of_conv(windows, Accuracy::strict), "");
  for (const float other : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    weights.mutable_data<float>()[100] = windows.mutable_data<float>()[100] = other;
    EXPECT_EQ(format_of(weights, Accuracy::normal, 12), "");
    EXPECT_EQ(format_of_conv(windows, Accuracy::normal), "");
  }
}

// Of a row behind `before`: whether rows of the weights that meet zeros stay in memory.
bool leaves_rows(const std::function<std::string(testing::ModelBuilder&, std::string)>& before,
                 Accuracy accuracy = Accuracy::normal) {
  testing::ModelBuilder model;
  const std::string row = before(model, model.input("x", {1, kDepth}));
  model.output(model.node("MatMul", {row, model.weight(testing::random_input({kDepth, 640}, 1))}));
  const std::vector<Tensor> in{testing::random_input({1, kDepth}, 3)};
  SessionOptions options;
  options.threads = 2;
  options.use_cache = false;
  options.accuracy = Accuracy::strict;
  const std::vector<Tensor> exact = model.load(options).run(in);
  options.accuracy = accuracy;
  Profile profile;
  const std::vector<Tensor> out = model.load(options).run_profiled(in, profile);
  float largest = 0;
  for (const float each : exact[0].elements<float>()) largest = std::max(largest, std::abs(each));
  for (int64_t i = 0; i < out[0].size(); ++i)
    EXPECT_NEAR(out[0].data<float>()[i], exact[0].data<float>()[i], 1e-5F * largest);
  return std::any_of(profile.steps.begin(), profile.steps.end(),
                     [](const StepTime& step) { return step.kernel.find("sparse row") != std::string::npos; });
}

TEST(WeightFormats, LeaveRowsInMemoryThatMeetARectifiersZeros) {
  using Model = testing::ModelBuilder;
  EXPECT_TRUE(leaves_rows([](Model& model, const std::string& x) { return model.node("Relu", {x}); }));
  EXPECT_FALSE(
      leaves_rows([](Model& model, const std::string& x) { return model.node("Relu", {x}); }, Accuracy::strict));
  // Fused, moved and cut off above.
  EXPECT_TRUE(leaves_rows([](Model& model, const std::string& x) {
    const std::string sum = model.node("Add", {x, model.random_weight({1, kDepth})});
    return model.node("Flatten", {model.node("Relu", {sum})}).result();
  }));
  EXPECT_TRUE(leaves_rows([](Model& model, const std::string& x) {
    Tensor zero(DType::f32, {}), six(DType::f32, {});
    zero.mutable_data<float>()[0] = 0;
    six.mutable_data<float>()[0] = 6;
    return model.node("Clip", {x, model.weight(zero), model.weight(six)});
  }));
  // A gate, and a square.
  EXPECT_TRUE(leaves_rows([](Model& model, const std::string& x) {
    return model.node("Mul", {model.node("Relu", {x}), model.random_weight({1, kDepth})});
  }));
  EXPECT_TRUE(leaves_rows([](Model& model, const std::string& x) {
    const std::string rectified = model.node("Relu", {x});
    return model.node("Mul", {rectified, rectified});
  }));
  EXPECT_FALSE(leaves_rows([](Model&, const std::string& x) { return x; }));
  EXPECT_FALSE(leaves_rows([](Model& model, const std::string& x) { return model.node("Tanh", {x}); }));
}

}  // namespace
}  // namespace lathe
