// The strict level adds up short sums: its errors are a fraction of those of one long sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/model_builder.h"

namespace lathe {
namespace {

constexpr int64_t kRows = 20, kChannels = 8192, kColumns = 48;

// Root mean square of the differences from sums in float64, x [kRows, kChannels] times w [kColumns, kChannels].
double error(const Tensor& got, const Tensor& x, const Tensor& w, int64_t row_stride, int64_t column_stride) {
  double sum = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      double exact = 0;
      for (int64_t k = 0; k < kChannels; ++k) {
        exact += double{x.data<float>()[row * kChannels + k]} * w.data<float>()[column * kChannels + k];
      }
      const double off = got.data<float>()[row * row_stride + column * column_stride] - exact;
      sum += off * off;
    }
  }
  return std::sqrt(sum / kRows / kColumns);
}

SessionOptions options(Accuracy accuracy) {
  SessionOptions made;
  made.threads = 1;
  made.use_cache = false;
  made.accuracy = accuracy;
  return made;
}

class StrictSums : public ::testing::Test {
 protected:
  const Tensor x_ = testing::random_input({kRows, kChannels}, 1), w_ = testing::random_input({kColumns, kChannels}, 2);
};

TEST_F(StrictSums, OfAProductAreMoreAccurate) {
  testing::ModelBuilder model;
  model.output(model.node("Gemm", {model.input("x", {kRows, kChannels}), model.weight(w_)}).with("transB", 1));
  const auto error_at = [&](Accuracy accuracy) {
    return error(model.load(options(accuracy)).run(std::vector<Tensor>{x_})[0], x_, w_, kColumns, 1);
  };
  EXPECT_LT(error_at(Accuracy::strict), error_at(Accuracy::normal) / 1.8);
}

TEST_F(StrictSums, OfAConvolutionAreMoreAccurate) {
  testing::ModelBuilder model;
  Tensor pixels(DType::f32, {1, kChannels, 4, 5});
  for (int64_t k = 0; k < kChannels; ++k) {
    for (int64_t i = 0; i < kRows; ++i) {
      pixels.mutable_data<float>()[k * kRows + i] = x_.data<float>()[i * kChannels + k];
    }
  }
  Tensor taps(DType::f32, {kColumns, kChannels, 1, 1});
  std::copy_n(w_.data<float>(), w_.size(), taps.mutable_data<float>());
  model.output(model.node("Conv", {model.input("x", {1, kChannels, 4, 5}), model.weight(taps)}));
  const auto error_at = [&](Accuracy accuracy) {
    return error(model.load(options(accuracy)).run(std::vector<Tensor>{pixels})[0], x_, w_, 1, kRows);
  };
  EXPECT_LT(error_at(Accuracy::strict), error_at(Accuracy::normal) / 1.8);
}

// Of every second output no input is part.
TEST(StrictSum, OfNoProductsIsZero) {
  testing::ModelBuilder model;
  const std::string x = model.input("x", {1, 1, 3}), weight = model.weight(Tensor::from<float>({1, 1, 1}, {10}));
  model.output(model.node("ConvTranspose", {x, weight}).with("strides", {2}).with("pads", {1, 0}));
  const std::vector<Tensor> in{Tensor::from<float>({1, 1, 3}, {1, 2, 3})};
  EXPECT_THAT(model.load(options(Accuracy::strict)).run(in)[0].elements<float>(), ::testing::ElementsAre(0, 20, 0, 30));
}

}  // namespace
}  // namespace lathe
