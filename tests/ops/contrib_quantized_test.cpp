// com.microsoft's operators between quantized tensors, and what else is composed of standard operators.
#include <algorithm>
#include <cmath>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::floats;
using testing::list;
using testing::microsoft;
using testing::OpTester;
using testing::random_tensor;
using testing::tensor;

// A quantized operand, which knows what its bytes mean.
struct Quantized {
  Tensor bytes;
  float scale;
  uint8_t zero;
  double at(int64_t i) const { return (bytes.data<uint8_t>()[i] - zero) * static_cast<double>(scale); }
  void add_to(OpTester& node) const { node.input(bytes).input(Tensor::scalar(scale)).input(Tensor::scalar(zero)); }
};

Quantized random_quantized(const Dims& dims, std::mt19937& random) {
  Quantized q{Tensor(DType::u8, dims), 0.05F, static_cast<uint8_t>(random() % 256)};
  for (int64_t i = 0; i < q.bytes.size(); ++i) q.bytes.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(random());
  return q;
}

// The byte nearest to y, or the one beside it where y lies half way between two.
void expect_byte(uint8_t got, double y, float scale, int zero, const std::string& where) {
  EXPECT_NEAR(got, std::clamp(y / static_cast<double>(scale) + zero, 0.0, 255.0), 0.501) << where;
}

TEST(QLinearBinary, WorksOnWhatTheBytesMean) {
  std::mt19937 random(1);
  const Quantized a = random_quantized({2, 3, 4}, random), b = random_quantized({4}, random);
  for (const bool adds : {true, false}) {
    OpTester node = microsoft(adds ? "QLinearAdd" : "QLinearMul");
    a.add_to(node);
    b.add_to(node);
    const Tensor y = node.input(Tensor::scalar(0.1F)).input(Tensor::scalar<uint8_t>(100)).result();
    for (int64_t i = 0; i < 24; ++i) {
      const double expected = adds ? a.at(i) + b.at(i % 4) : a.at(i) * b.at(i % 4);
      expect_byte(y.data<uint8_t>()[i], expected, 0.1F, 100, std::to_string(i));
    }
  }
}

TEST(QLinearBinary, TakesAnAbsentZeroPointForZero) {
  const Tensor y = microsoft("QLinearAdd")
                       .input(tensor<int8_t>({2}, {-4, 6}))
                       .input(Tensor::scalar(1.0F))
                       .absent()
                       .input(tensor<int8_t>({2}, {1, 1}))
                       .input(Tensor::scalar(2.0F))
                       .absent()
                       .input(Tensor::scalar(1.0F))
                       .result();
  EXPECT_EQ(list<int8_t>(y), (std::vector<int8_t>{-2, 8}));
  EXPECT_THROW(microsoft("QLinearAdd").input(tensor<int8_t>({1}, {0})).input(Tensor::scalar(1.0F)).result(), Error);
}

// 1 + erf(x), as GELU is exported: (a - 128) * 2 / 255 + b / 255 in units of 2 / 255.
TEST(QLinearBinary, RoundsSumsHalfWayBetweenToEven) {
  const float unit = 2 / 255.0F;
  Tensor a(DType::u8, {128}), b(DType::u8, {128});
  for (int i = 0; i < 128; ++i) {
    a.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(128 + i);
    b.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(2 * i + 1 > 255 ? 255 : 2 * i + 1);
  }
  const Tensor y = microsoft("QLinearAdd")
                       .input(a)
                       .input(Tensor::scalar(unit))
                       .input(Tensor::scalar<uint8_t>(128))
                       .input(b)
                       .input(Tensor::scalar(unit / 2))
                       .input(Tensor::scalar<uint8_t>(0))
                       .input(Tensor::scalar(unit))
                       .input(Tensor::scalar<uint8_t>(0))
                       .result();
  for (int i = 0; i < 128; ++i) {
    const double sum = i + b.data<uint8_t>()[i] * 0.5;
    EXPECT_EQ(y.data<uint8_t>()[i], std::min(255.0, std::nearbyint(sum))) << i;
  }
}

TEST(QLinearBinary, MultipliesByScalesThatMakeAnOperandInfinite) {
  const Tensor y = microsoft("QLinearMul")
                       .input(tensor<int8_t>({2}, {-128, 127}))
                       .input(Tensor::scalar(1 / 255.0F))
                       .input(Tensor::scalar<int8_t>(-128))
                       .input(tensor<int8_t>({1}, {-128}))
                       .input(Tensor::scalar(2.7e36F))
                       .input(Tensor::scalar<int8_t>(0))
                       .input(Tensor::scalar(1.36e36F))
                       .input(Tensor::scalar<int8_t>(127))
                       .result();
  EXPECT_EQ(list<int8_t>(y), (std::vector<int8_t>{127, -127}));  // 0 and -3.456e38, past float32's largest
}

TEST(QLinearUnary, WorksOnWhatTheBytesMean) {
  std::mt19937 random(2);
  const Quantized x = random_quantized({3, 5}, random);
  const auto run = [&](const char* op) {
    OpTester node = microsoft(op);
    x.add_to(node);
    return node.input(Tensor::scalar(0.02F)).input(Tensor::scalar<uint8_t>(50)).with("alpha", 0.1F).result();
  };
  const Tensor sigmoid = run("QLinearSigmoid"), leaky = run("QLinearLeakyRelu");
  for (int64_t i = 0; i < 15; ++i) {
    expect_byte(sigmoid.data<uint8_t>()[i], 1 / (1 + std::exp(-x.at(i))), 0.02F, 50, "sigmoid");
    expect_byte(leaky.data<uint8_t>()[i], x.at(i) < 0 ? 0.1F * x.at(i) : x.at(i), 0.02F, 50, "leaky");
  }
}

TEST(QLinearPool, AveragesChannelsFirstAndLast) {
  std::mt19937 random(3);
  for (const bool is_last : {false, true}) {
    const Quantized x = random_quantized(is_last ? Dims{1, 2, 3, 4} : Dims{1, 4, 2, 3}, random);
    OpTester node = microsoft("QLinearGlobalAveragePool");
    x.add_to(node);
    const Tensor y = node.input(Tensor::scalar(0.05F))
                         .input(Tensor::scalar<uint8_t>(128))
                         .with("channels_last", is_last ? 1 : 0)
                         .result();
    ASSERT_EQ(y.dims(), is_last ? (Dims{1, 1, 1, 4}) : (Dims{1, 4, 1, 1}));
    for (int64_t c = 0; c < 4; ++c) {
      double sum = 0;
      for (int64_t p = 0; p < 6; ++p) sum += x.at(is_last ? p * 4 + c : c * 6 + p);
      expect_byte(y.data<uint8_t>()[c], sum / 6, 0.05F, 128, std::to_string(c));
    }
  }
}

TEST(QLinearSoftmax, FlattensBeforeOpset13) {
  std::mt19937 random(4);
  const Quantized x = random_quantized({2, 2, 3}, random);
  for (const int opset : {12, 13}) {
    OpTester node = microsoft("QLinearSoftmax");
    x.add_to(node);
    const Tensor y = node.input(Tensor::scalar(1.0F / 256))
                         .input(Tensor::scalar<uint8_t>(0))
                         .with("opset", opset)
                         .with("axis", 1)
                         .result();
    for (int64_t i = 0; i < 12; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 12; ++j) {
        const bool is_same_row = i / 6 == j / 6 && (opset < 13 || i % 3 == j % 3);
        if (is_same_row) sum += std::exp(x.at(j));
      }
      expect_byte(y.data<uint8_t>()[i], std::exp(x.at(i)) / sum, 1.0F / 256, 0, std::to_string(i));
    }
  }
}

TEST(QLinearSoftmax, TakesTheLastAxisUnlessToldOtherwise) {
  std::mt19937 random(4);
  const Quantized x = random_quantized({2, 3, 1}, random);
  OpTester node = microsoft("QLinearSoftmax");
  x.add_to(node);
  const Tensor y = node.input(Tensor::scalar(1.0F / 256)).input(Tensor::scalar<uint8_t>(0)).with("opset", 11).result();
  EXPECT_EQ(list<uint8_t>(y), std::vector<uint8_t>(6, 255));  // of one element each
}

TEST(QLinearConcat, RequantizesThePartsThatNeedIt) {
  std::mt19937 random(5);
  const Quantized a = random_quantized({2, 3}, random), b = random_quantized({2, 1}, random);
  OpTester node = microsoft("QLinearConcat");
  node.constant(Tensor::scalar(a.scale)).constant(Tensor::scalar(a.zero));
  node.input(a.bytes).constant(Tensor::scalar(a.scale)).constant(Tensor::scalar(a.zero));
  node.input(b.bytes).constant(Tensor::scalar(0.1F)).constant(Tensor::scalar<uint8_t>(7)).with("axis", 1);
  const Tensor y = node.result();
  ASSERT_EQ(y.dims(), (Dims{2, 4}));
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.data<uint8_t>()[row * 4 + i], a.bytes.data<uint8_t>()[row * 3 + i]);
    const double value = (b.bytes.data<uint8_t>()[row] - 7) * static_cast<double>(0.1F);
    expect_byte(y.data<uint8_t>()[row * 4 + 3], value, a.scale, a.zero, "b");
  }
}

TEST(QLinearWhere, PicksFromEither) {
  std::mt19937 random(6);
  const Quantized a = random_quantized({4}, random), b = random_quantized({4}, random);
  OpTester node = microsoft("QLinearWhere");
  node.input(tensor<bool>({4}, {true, false, false, true}));
  a.add_to(node);
  b.add_to(node);
  const Tensor y = node.input(Tensor::scalar(0.1F)).input(Tensor::scalar<uint8_t>(128)).result();
  for (int64_t i = 0; i < 4; ++i)
    expect_byte(y.data<uint8_t>()[i], i == 0 || i == 3 ? a.at(i) : b.at(i), 0.1F, 128, "");
}

TEST(ChannelsLast, AreRefusedWithoutAPicture) {
  for (const Tensor& x : {Tensor::scalar(1.0F), floats({1})}) {
    EXPECT_THROW(microsoft("NhwcMaxPool").input(x).with("kernel_shape", std::vector<int64_t>{2, 2}).result(), Error);
    EXPECT_THROW(microsoft("NhwcConv").input(x).input(x).result(), Error);
    EXPECT_THROW(microsoft("GroupNorm").input(x).input(x).input(x).with("groups", 1).result(), Error);
  }
}

TEST(NhwcMaxPool, TakesChannelsLast) {
  const Tensor x = tensor<uint8_t>({1, 2, 2, 2}, {1, 20, 3, 40, 5, 60, 7, 8});
  const Tensor y = microsoft("NhwcMaxPool").input(x).with("kernel_shape", std::vector<int64_t>{2, 2}).result();
  EXPECT_EQ(y.dims(), (Dims{1, 1, 1, 2}));
  EXPECT_EQ(list<uint8_t>(y), (std::vector<uint8_t>{7, 60}));
}

TEST(FusedConv, AddsAndActivates) {
  const Tensor x = tensor<float>({1, 1, 1, 2}, {1, 2}), w = tensor<float>({1, 1, 1, 1}, {3}),
               z = tensor<float>({1, 1, 1, 2}, {-10, 0});
  const Tensor y =
      microsoft("FusedConv").input(x).input(w).input(floats({1})).input(z).with("activation", "Relu").result();
  EXPECT_EQ(list<float>(y), (std::vector<float>{0, 7}));
  const Tensor clipped = microsoft("FusedConv")
                             .input(x)
                             .input(w)
                             .with("activation", "Clip")
                             .with("activation_params", std::vector<float>{0, 4})
                             .result();
  EXPECT_EQ(list<float>(clipped), (std::vector<float>{3, 4}));
}

TEST(GroupNorm, NormalizesGroupsOfTheLastAxis) {
  std::mt19937 random(7);
  const Tensor x = random_tensor({1, 2, 3, 4}, random), gamma = random_tensor({4}, random),
               beta = random_tensor({4}, random);
  const Tensor y =
      microsoft("GroupNorm").input(x).input(gamma).input(beta).with("groups", 2).with("activation", 1).result();
  for (int64_t group = 0; group < 2; ++group) {
    double mean = 0, square = 0;
    const auto each = [&](const auto& visit) {
      for (int64_t p = 0; p < 6; ++p)
        for (int64_t c = 2 * group; c < 2 * group + 2; ++c) visit(p * 4 + c, c);
    };
    each([&](int64_t i, int64_t) { mean += x.data<float>()[i] / 12.0; });
    each([&](int64_t i, int64_t) { square += std::pow(x.data<float>()[i] - mean, 2) / 12; });
    each([&](int64_t i, int64_t c) {
      const double normal =
          (x.data<float>()[i] - mean) / std::sqrt(square + 1e-5) * gamma.data<float>()[c] + beta.data<float>()[c];
      EXPECT_NEAR(y.data<float>()[i], normal / (1 + std::exp(-normal)), 2e-6);
    });
  }
}

TEST(BiasSplitGelu, MultipliesOneHalfByGeluOfTheOther) {
  const Tensor y =
      microsoft("BiasSplitGelu").input(tensor<float>({1, 1, 4}, {1, 2, 3, -1})).input(floats({1, 1, 0, 0})).result();
  const auto gelu = [](double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); };
  EXPECT_NEAR(y.data<float>()[0], 2 * gelu(3), 1e-5);
  EXPECT_NEAR(y.data<float>()[1], 3 * gelu(-1), 1e-5);
}

TEST(EmbedLayerNormalization, SumsThreeTablesAndCountsTheMask) {
  std::mt19937 random(8);
  const Tensor words = random_tensor({5, 4}, random), positions = random_tensor({6, 4}, random),
               segments = random_tensor({2, 4}, random);
  const std::vector<Tensor> got = microsoft("EmbedLayerNormalization")
                                      .input(tensor<int32_t>({1, 2}, {3, 1}))
                                      .input(tensor<int32_t>({1, 2}, {0, 1}))
                                      .input(words)
                                      .input(positions)
                                      .input(segments)
                                      .input(floats({1, 1, 1, 1}))
                                      .input(floats({0, 0, 0, 0}))
                                      .input(tensor<int32_t>({1, 2}, {1, 0}))
                                      .outputs(3)
                                      .reference();
  const int64_t ids[] = {3, 1};
  for (int64_t t = 0; t < 2; ++t) {
    double sum[4], mean = 0, square = 0;
    for (int64_t i = 0; i < 4; ++i) {
      sum[i] = static_cast<double>(words.data<float>()[ids[t] * 4 + i]) + positions.data<float>()[t * 4 + i] +
               segments.data<float>()[t * 4 + i];
      mean += sum[i] / 4;
    }
    for (const double x : sum) square += (x - mean) * (x - mean) / 4;
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(got[0].data<float>()[t * 4 + i], (sum[i] - mean) / std::sqrt(square), 1e-5);
      EXPECT_NEAR(got[2].data<float>()[t * 4 + i], sum[i], 1e-6);
    }
  }
  EXPECT_EQ(list<int32_t>(got[1]), (std::vector<int32_t>{1}));
}

TEST(SimplifiedLayerNormalization, DividesByTheRootOfTheMeanSquare) {
  const std::vector<Tensor> got = OpTester("SimplifiedLayerNormalization", 13)
                                      .input(tensor<float>({1, 2}, {3, 4}))
                                      .input(floats({1, 2}))
                                      .with("epsilon", 0.0F)
                                      .outputs(2)
                                      .reference();
  const double root = std::sqrt(12.5);
  EXPECT_NEAR(got[0].data<float>()[0], 3 / root, 1e-6);
  EXPECT_NEAR(got[0].data<float>()[1], 8 / root, 1e-6);
  EXPECT_NEAR(got[1].data<float>()[0], 1 / root, 1e-6);
}

}  // namespace
}  // namespace lathe
