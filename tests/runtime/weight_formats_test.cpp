// Which format the weights of one row take: by their elements, their size and the accuracy level.
#include <gtest/gtest.h>

#include <string>

#include "lathe/profile.h"
#include "src/base/half.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

constexpr int64_t kDepth = 512;

// The format in the plan's text; empty: float32.
std::string format_of(const Tensor& weights, Accuracy accuracy) {
  testing::ModelBuilder model;
  model.output(model.node("MatMul", {model.input("x", {1, kDepth}), model.weight(weights)}));
  SessionOptions options;
  options.threads = 1;
  options.use_cache = false;
  options.accuracy = accuracy;
  Profile profile;
  const std::vector<Tensor> in{testing::random_input({1, kDepth}, 3)};
  (void)model.load(options).run_profiled(in, profile);
  for (const std::string format : {"bfp20", "bf16", "f16"})
    if (profile.steps.back().kernel.find(" " + format + " ") != std::string::npos) return format;
  return "";
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

}  // namespace
}  // namespace lathe
