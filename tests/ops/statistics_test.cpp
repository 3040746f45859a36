// Losses, random numbers, windows, determinants, n-grams and optimizers.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "src/base/half.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

void expect_floats(const Tensor& result, const std::vector<double>& expected, double bound = 1e-6) {
  ASSERT_EQ(result.size(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(result.data<float>()[i], expected[i], bound) << i;
}

// ---- Softmax of 16 bits: each of its steps rounds, as the operators that define it.

TEST(Softmax, RoundsEveryStepInFloat16) {
  const std::vector<float> x{0.3F, 1.1F, -0.7F, 2.3F, 0.9F};
  Tensor data(DType::f16, {5});
  std::vector<Float16> shares;
  Float16 sum, top = 2.3F;
  float exact = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    data.mutable_data<uint16_t>()[i] = Float16(x[i]).bits;
    const Float16 below = Float16(x[i]) - top;
    shares.emplace_back(std::exp(static_cast<float>(below)));
    exact += shares.back();
  }
  sum = exact;
  const Tensor result = OpTester("Softmax", 13).input(data).result();
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(result.data<uint16_t>()[i], Float16(shares[i] / sum).bits) << "element " << i;
}

// ---- Losses: the examples of the text.

OpTester likelihood(const char* reduction) {
  OpTester tester("NegativeLogLikelihoodLoss", 13);
  tester.with("reduction", reduction).input(tensor<float>({2, 3, 2}, {1, 2, 2, 2, 3, 2, 0, 1, 2, 2, 1, 2}));
  return tester.input(tensor<int64_t>({2, 2}, {2, 1, 0, 2}));
}

TEST(NegativeLogLikelihoodLoss, ReducesAsItIsTold) {
  const Tensor weights = floats({0.2F, 0.3F, 0.1F});
  expect_floats(likelihood("none").result(), {-3, -2, 0, -2});
  expect_floats(likelihood("sum").input(weights).result(), {-1.1});
  expect_floats(likelihood("mean").input(weights).result(), {-1.1 / 0.7});
  expect_floats(likelihood("mean").result(), {-7.0 / 4});
}

TEST(NegativeLogLikelihoodLoss, LeavesOutWhatItIgnores) {
  expect_floats(likelihood("mean").with("ignore_index", 2).result(), {-2.0 / 2});
  expect_floats(likelihood("none").with("ignore_index", 2).result(), {0, -2, 0, 0});
  OpTester outside("NegativeLogLikelihoodLoss", 13);
  outside.with("ignore_index", -7).input(tensor<float>({2, 2}, {1, 2, 3, 4})).input(longs({-7, 1}));
  expect_floats(outside.result(), {-4});
}

TEST(NegativeLogLikelihoodLoss, RefusesLabelsOutOfRange) {
  for (const int64_t label : {-1, 2, 1000000}) {
    OpTester tester("NegativeLogLikelihoodLoss", 13);
    EXPECT_THROW(tester.input(tensor<float>({1, 2}, {1, 2})).input(longs({label})).result(), Error);
  }
  EXPECT_THROW(likelihood("product").result(), Error);
}

TEST(SoftmaxCrossEntropyLoss, GivesTheLossAndTheLogProbabilities) {
  OpTester tester("SoftmaxCrossEntropyLoss", 13);
  tester.outputs(2).with("reduction", "none").input(tensor<float>({2, 2}, {0, std::log(3.0F), 1000, 1000}));
  const std::vector<Tensor> results = tester.input(longs({1, 0})).reference();
  expect_floats(results[0], {std::log(4.0 / 3), std::log(2.0)});
  expect_floats(results[1], {-std::log(4.0), std::log(0.75), -std::log(2.0), -std::log(2.0)});
}

// ---- Random numbers

TEST(RandomNormal, HasTheMeanAndTheDeviationThatItIsGiven) {
  OpTester tester("RandomNormal", 22);
  tester.with("shape", std::vector<int64_t>{100, 100}).with("mean", 3.0F).with("scale", 2.0F).with("seed", 5.0F);
  const std::vector<float> values = list<float>(tester.result());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 10000;
  double square = 0;
  for (const float value : values) square += (value - mean) * (value - mean);
  EXPECT_NEAR(mean, 3, 5 * 2 / 100.0);  // five standard errors
  EXPECT_NEAR(std::sqrt(square / 10000), 2, 5 * 2 / std::sqrt(2 * 10000.0));
}

TEST(RandomUniform, StaysInItsRangeAndFillsIt) {
  OpTester tester("RandomUniformLike", 22);
  tester.with("low", -2.0F).with("high", 6.0F).with("seed", 1.0F).with("dtype", 11);
  const std::vector<double> values = list<double>(tester.input(Tensor(DType::i32, {10000})).result());
  for (const double value : values) EXPECT_TRUE(value >= -2 && value < 6) << value;
  EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / 10000, 2, 5 * 8 / std::sqrt(12 * 10000.0));
}

TEST(RandomUniform, RepeatsItselfWithASeedOnly) {
  const auto draw = [](bool has_seed) {
    OpTester tester("RandomUniform", 22);
    tester.with("shape", std::vector<int64_t>{8});
    if (has_seed) tester.with("seed", 3.0F);
    return list<float>(tester.result());
  };
  EXPECT_EQ(draw(true), draw(true));
  EXPECT_NE(draw(false), draw(false));
}

TEST(Bernoulli, DrawsOnesWithTheGivenProbability) {
  Tensor probabilities(DType::f32, {3, 10000});
  for (int64_t i = 0; i < 30000; ++i) probabilities.mutable_data<float>()[i] = static_cast<float>(i / 10000) * 0.5F;
  OpTester tester("Bernoulli", 22);
  const Tensor result = tester.with("seed", 2.0F).with("dtype", 7).input(probabilities).result();
  const std::vector<int64_t> ones = list<int64_t>(result);
  EXPECT_EQ(std::accumulate(ones.begin(), ones.begin() + 10000, int64_t{0}), 0);
  EXPECT_NEAR(double(std::accumulate(ones.begin() + 10000, ones.begin() + 20000, int64_t{0})), 5000, 5 * 50);
  EXPECT_EQ(std::accumulate(ones.begin() + 20000, ones.end(), int64_t{0}), 10000);
}

TEST(Multinomial, DrawsClassesByTheirLogProbabilities) {
  const float never = -std::numeric_limits<float>::infinity();
  OpTester tester("Multinomial", 22);
  tester.with("sample_size", 10000).with("seed", 9.0F).input(tensor<float>({1, 4}, {never, 0, std::log(3.0F), never}));
  std::vector<int> counts(4);
  for (const int32_t drawn : list<int32_t>(tester.result())) ++counts[static_cast<size_t>(drawn)];
  EXPECT_EQ(counts[0] + counts[3], 0);
  EXPECT_NEAR(counts[2], 7500, 5 * std::sqrt(10000 * 0.25 * 0.75));
  OpTester nothing("Multinomial", 22);
  EXPECT_THROW(nothing.input(tensor<float>({1, 2}, {never, never})).result(), Error);
}

// ---- Windows and mel weights

TEST(Windows, ArePeriodicOrSymmetric) {
  const Tensor five = Tensor::scalar<int64_t>(5), four = Tensor::scalar<int32_t>(4);
  expect_floats(OpTester("HannWindow", 17).constant(four).result(), {0, 0.5, 1, 0.5});
  expect_floats(OpTester("HannWindow", 17).with("periodic", 0).constant(five).result(), {0, 0.5, 1, 0.5, 0});
  expect_floats(OpTester("HammingWindow", 17).with("periodic", 0).constant(five).result(),
                {4.0 / 46, 25.0 / 46, 1, 25.0 / 46, 4.0 / 46});
  expect_floats(OpTester("BlackmanWindow", 17).input(four).result(), {0, 0.34, 1, 0.34});
  expect_floats(OpTester("HannWindow", 17).with("periodic", 0).input(Tensor::scalar<int64_t>(1)).result(), {1});
  EXPECT_EQ(OpTester("HannWindow", 17).with("output_datatype", 11).input(five).result().dtype(), DType::f64);
  EXPECT_THROW(OpTester("HannWindow", 17).input(Tensor::scalar<int64_t>(-1)).result(), Error);
  EXPECT_THROW(OpTester("HannWindow", 17).with("output_datatype", 8).input(five).result(), Error);
}

OpTester mel(int64_t bins, float lower, float upper) {
  OpTester tester("MelWeightMatrix", 17);
  tester.constant(Tensor::scalar(bins)).constant(Tensor::scalar<int64_t>(16)).constant(Tensor::scalar<int64_t>(8192));
  return tester.constant(Tensor::scalar(lower)).constant(Tensor::scalar(upper));
}

TEST(MelWeightMatrix, HasTrianglesOfHeightOne) {
  const Tensor result = mel(8, 0, 4096).result();
  ASSERT_EQ(result.dims(), (Dims{9, 8}));
  for (int64_t bin = 0; bin < 8; ++bin) {
    float largest = 0;
    for (int64_t i = 0; i < 9; ++i) largest = std::max(largest, result.data<float>()[i * 8 + bin]);
    EXPECT_EQ(largest, 1) << bin;
  }
  EXPECT_THROW(mel(8, 0, 400000).result(), Error);
  EXPECT_THROW(mel(8, 400, 100).result(), Error);
}

// ---- Det

TEST(Det, TakesEachMatrixOfABatch) {
  const Tensor matrices = tensor<float>({3, 2, 2}, {1, 2, 3, 4, 0, 1, 1, 0, 1, 2, 2, 4});
  expect_floats(OpTester("Det", 11).input(matrices).result(), {-2, -1, 0});
  expect_floats(OpTester("Det", 22).input(tensor<float>({3, 3}, {2, 0, 1, 1, 3, 2, 1, 1, 4})).result(), {18});
  EXPECT_THROW(OpTester("Det", 11).input(Tensor(DType::f32, {2, 3})).result(), Error);
}

// ---- TfIdfVectorizer

OpTester vectorizer(const char* mode, int64_t least, int64_t most, int64_t skips) {
  OpTester tester("TfIdfVectorizer", 9);
  tester.with("mode", mode).with("min_gram_length", least).with("max_gram_length", most).with("max_skip_count", skips);
  tester.with("ngram_counts", std::vector<int64_t>{0, 4})
      .with("ngram_indexes", std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
  return tester.with("pool_int64s", std::vector<int64_t>{2, 3, 5, 4, 5, 6, 7, 8, 6, 7});
}

TEST(TfIdfVectorizer, CountsGramsWithSkips) {
  const Tensor row = tensor<int32_t>({12}, {1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8});
  expect_floats(vectorizer("TF", 2, 2, 0).input(row).result(), {0, 0, 0, 0, 1, 1, 1});
  expect_floats(vectorizer("TF", 2, 2, 5).input(row).result(), {0, 0, 0, 0, 1, 3, 1});
  expect_floats(vectorizer("TF", 1, 2, 5).input(row).result(), {0, 3, 1, 0, 1, 3, 1});
  expect_floats(vectorizer("IDF", 1, 2, 5).input(row).result(), {0, 1, 1, 0, 1, 1, 1});
  const Tensor rows = tensor<int64_t>({2, 6}, {1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8});
  expect_floats(vectorizer("TF", 2, 2, 0).input(rows).result(), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1});
}

TEST(TfIdfVectorizer, WeighsStrings) {
  Tensor words(DType::string, {3});
  for (int64_t i = 0; i < 3; ++i) words.mutable_data<std::string>()[i] = i == 1 ? "b" : "a";
  OpTester tester("TfIdfVectorizer", 9);
  tester.with("mode", "TFIDF").with("min_gram_length", 1).with("max_gram_length", 1).with("max_skip_count", 0);
  tester.with("ngram_counts", std::vector<int64_t>{0}).with("ngram_indexes", std::vector<int64_t>{1, 0});
  tester.with("pool_strings", std::vector<std::string>{"a", "b"}).with("weights", std::vector<float>{2, 10});
  expect_floats(tester.input(words).result(), {10, 4});
}

TEST(TfIdfVectorizer, RefusesAPoolThatItsCountsDoNotCut) {
  const Tensor row = tensor<int64_t>({1}, {1});
  EXPECT_THROW(vectorizer("TF", 1, 2, 0).with("ngram_counts", std::vector<int64_t>{0, 99}).input(row).result(), Error);
  EXPECT_THROW(vectorizer("TF", 1, 2, 0).with("ngram_counts", std::vector<int64_t>{0, 3}).input(row).result(), Error);
  EXPECT_THROW(vectorizer("TF", 1, 2, 0).with("ngram_indexes", std::vector<int64_t>{0}).input(row).result(), Error);
  EXPECT_THROW(vectorizer("TF", 1, 2, 0).with("ngram_indexes", std::vector<int64_t>{-1}).input(row).result(), Error);
}

// ---- Optimizers: one tensor each, by hand.

OpTester optimizer(const char* name, int64_t count) {
  OpTester tester(name, 1, "ai.onnx.preview.training");
  tester.input(Tensor::scalar(0.5F)).input(Tensor::scalar(count));
  return tester.input(floats({2})).input(floats({3}));
}

TEST(Optimizers, TakeOneStep) {
  std::vector<Tensor> results = optimizer("Adagrad", 2)
                                    .outputs(2)
                                    .with("decay_factor", 0.5F)
                                    .with("epsilon", 1.0F)
                                    .input(floats({7}))
                                    .reference();
  expect_floats(results[1], {16});
  expect_floats(results[0], {2 - 0.25 * 3 / 5});
  results = optimizer("Momentum", 0)
                .outputs(2)
                .with("alpha", 0.5F)
                .with("beta", 9.0F)
                .with("norm_coefficient", 1.0F)
                .with("mode", "nesterov")
                .input(floats({4}))
                .reference();
  expect_floats(results[1], {7});
  expect_floats(results[0], {2 - 0.5 * (5 + 0.5 * 7)});
  results = optimizer("Adam", 1)
                .outputs(3)
                .with("alpha", 0.5F)
                .with("beta", 0.75F)
                .with("epsilon", 1.0F)
                .input(floats({1}))
                .input(floats({9}))
                .reference();
  expect_floats(results[1], {2});
  expect_floats(results[2], {9});
  expect_floats(results[0], {2 - 0.5 * 0.5 / 0.5 * 2 / 4});
}

TEST(Optimizers, RefuseUnequalLists) {
  EXPECT_THROW(optimizer("Adagrad", 0).outputs(2).reference(), Error);
  EXPECT_THROW(optimizer("Adagrad", 0).outputs(2).input(floats({1, 2})).reference(), Error);
  EXPECT_THROW(optimizer("Adam", 0).outputs(3).input(floats({1})).reference(), Error);
}

// ---- SwiGLU

TEST(SwiGlu, GatesItsSecondInput) {
  OpTester tester("SwiGLU", 28);
  tester.with("alpha", 2.0F).input(floats({0, 1, -1})).input(floats({5, 3, 2}));
  const std::vector<double> expected{0, 3 / (1 + std::exp(-2.0)), -2 / (1 + std::exp(2.0))};
  expect_floats(tester.result(), expected);
  const auto lowered = tester.lowered(usable_isa(), 1);
  ASSERT_TRUE(lowered.has_value());
  expect_floats((*lowered)[0], expected);
  OpTester uneven("SwiGLU", 28);
  EXPECT_THROW(uneven.input(floats({0, 1})).input(floats({5})).result(), Error);
}

}  // namespace
}  // namespace lathe::testing
