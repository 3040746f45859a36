// com.microsoft's products, against plain loops.
#include <cmath>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::floats;
using testing::list;
using testing::microsoft;
using testing::OpTester;
using testing::random_bytes;
using testing::random_tensor;
using testing::tensor;

void expect_near(const Tensor& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(static_cast<size_t>(got.size()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got.data<float>()[i], expected[i], tolerance) << "element " << i;
  }
}

TEST(FusedMatMul, TurnsBothOperandsAndScales) {
  std::mt19937 random(1);
  const Tensor a = random_tensor({2, 4, 3}, random), b = random_tensor({2, 5, 4}, random);
  const Tensor y =
      microsoft("FusedMatMul").input(a).input(b).with("transA", 1).with("transB", 1).with("alpha", 0.5F).result();
  ASSERT_EQ(y.dims(), (Dims{2, 3, 5}));
  std::vector<double> expected;
  for (int64_t batch = 0; batch < 2; ++batch)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 5; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < 4; ++k)
          sum +=
              static_cast<double>(a.data<float>()[(batch * 4 + k) * 3 + i]) * b.data<float>()[(batch * 5 + j) * 4 + k];
        expected.push_back(0.5 * sum);
      }
  expect_near(y, expected, 1e-6);
}

TEST(FusedMatMul, MovesTheFirstAxisBehindTheBatch) {
  std::mt19937 random(2);
  const Tensor a = random_tensor({3, 2, 4}, random), b = random_tensor({2, 4, 5}, random);
  const Tensor y = microsoft("FusedMatMul").input(a).input(b).with("transBatchA", 1).result();
  ASSERT_EQ(y.dims(), (Dims{2, 3, 5}));
  std::vector<double> expected;
  for (int64_t batch = 0; batch < 2; ++batch)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 5; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < 4; ++k)
          sum +=
              static_cast<double>(a.data<float>()[(i * 2 + batch) * 4 + k]) * b.data<float>()[(batch * 4 + k) * 5 + j];
        expected.push_back(sum);
      }
  expect_near(y, expected, 1e-6);
}

TEST(FusedGemm, AppliesItsActivation) {
  const Tensor a = tensor<float>({1, 2}, {1, 2}), b = tensor<float>({2, 2}, {1, -1, 1, -1}), c = floats({0.5F, 0.5F});
  const auto with = [&](const char* activation) {
    return microsoft("FusedGemm").input(a).input(b).input(c).with("activation", activation);
  };
  EXPECT_EQ(list<float>(with("Relu").result()), (std::vector<float>{3.5F, 0}));
  EXPECT_EQ(list<float>(with("LeakyRelu").with("activation_alpha", 0.5F).result()), (std::vector<float>{3.5F, -1.25F}));
  EXPECT_THROW(with("Nonsense").result(), Error);
}

// float32 sums of exact products of bytes.
TEST(MatMulIntegerToFloat, ScalesColumnsAndAddsTheBias) {
  std::mt19937 random(3);
  const Tensor a = random_bytes(DType::u8, {3, 7}, random), b = random_bytes(DType::i8, {7, 4}, random);
  const std::vector<float> scales{0.1F, 0.2F, 0.3F, 0.4F}, bias{1, 2, 3, 4};
  const std::vector<int> zeros{0, 3, -5, 7};
  const Tensor y = microsoft("MatMulIntegerToFloat")
                       .input(a)
                       .input(b)
                       .input(Tensor::scalar(0.5F))
                       .input(floats({0.1F, 0.2F, 0.3F, 0.4F}))
                       .input(Tensor::scalar<uint8_t>(120))
                       .input(tensor<int8_t>({4}, {0, 3, -5, 7}))
                       .input(floats({1, 2, 3, 4}))
                       .result();
  std::vector<double> expected;
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 4; ++j) {
      int sum = 0;
      for (size_t k = 0; k < 7; ++k)
        sum += (a.data<uint8_t>()[i * 7 + k] - 120) * (b.data<int8_t>()[k * 4 + j] - zeros[j]);
      expected.push_back(sum * 0.5 * scales[j] + bias[j]);
    }
  expect_near(y, expected, 0.05);  // sums reach 1e5, of which float32 keeps 2^-24
}

TEST(DynamicQuantizeMatMul, IsCloseToTheRealProduct) {
  std::mt19937 random(4);
  const Tensor a = random_tensor({2, 3, 16}, random), b = random_bytes(DType::i8, {16, 5}, random);
  const Tensor y = microsoft("DynamicQuantizeMatMul")
                       .input(a)
                       .input(b)
                       .input(Tensor::scalar(0.01F))
                       .input(Tensor::scalar<int8_t>(2))
                       .result();
  ASSERT_EQ(y.dims(), (Dims{2, 3, 5}));
  std::vector<double> expected;
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 5; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < 16; ++k)
        sum += static_cast<double>(a.data<float>()[i * 16 + k]) * 0.01 * (b.data<int8_t>()[k * 5 + j] - 2);
      expected.push_back(sum);
    }
  expect_near(y, expected, 16 * 1.3 * (2.0 / 255 / 2));  // half a step of a for each of 16 factors up to 1.3
}

TEST(QGemm, RequantizesOrNot) {
  const Tensor a = tensor<uint8_t>({1, 2}, {130, 126}), b = tensor<int8_t>({2, 2}, {10, -20, 30, 40});
  const auto node = [&] {
    return microsoft("QGemm")
        .input(a)
        .input(Tensor::scalar(0.5F))
        .input(Tensor::scalar<uint8_t>(128))
        .input(b)
        .input(Tensor::scalar(0.25F))
        .input(Tensor::scalar<int8_t>(0))
        .input(tensor<int32_t>({2}, {8, -8}))
        .with("alpha", 2.0F);
  };
  // [2, -2] b = [-40, -120]; with C [-32, -128]; times 2 * 0.5 * 0.25
  EXPECT_EQ(list<float>(node().result()), (std::vector<float>{-8, -32}));
  const Tensor y = node().input(Tensor::scalar(0.5F)).input(Tensor::scalar<uint8_t>(100)).result();
  EXPECT_EQ(list<uint8_t>(y), (std::vector<uint8_t>{84, 36}));
}

struct NBitsCase {
  int bits, k, block;
  bool has_zeros;
};

// What MatMulNBits means, bit by bit.
std::vector<double> expected_nbits(const NBitsCase& c, const Tensor& a, const Tensor& b, const Tensor& scales,
                                   const Tensor& zeros, int64_t n_columns) {
  const int64_t blocks = (c.k + c.block - 1) / c.block, blob = c.block * c.bits / 8,
                zero_row = (blocks * c.bits + 7) / 8;
  const auto bit = [](const uint8_t* bytes, int64_t i) { return bytes[i / 8] >> (i % 8) & 1; };
  const auto number = [&](const uint8_t* bytes, int64_t i) {
    int value = 0;
    for (int k = 0; k < c.bits; ++k) value += bit(bytes, i * c.bits + k) << k;
    return value;
  };
  std::vector<double> y;
  for (int64_t row = 0; row < a.size() / c.k; ++row)
    for (int64_t n = 0; n < n_columns; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const int64_t block = k / c.block;
        const int weight = number(b.data<uint8_t>() + (n * blocks + block) * blob, k % c.block);
        const int zero = c.has_zeros ? number(zeros.data<uint8_t>() + n * zero_row, block) : 1 << (c.bits - 1);
        sum += static_cast<double>(a.data<float>()[row * c.k + k]) * (weight - zero) *
               scales.data<float>()[n * blocks + block];
      }
      y.push_back(sum);
    }
  return y;
}

TEST(MatMulNBits, MatchesItsDefinitionForAllWidths) {
  std::mt19937 random(5);
  for (const NBitsCase c :
       {NBitsCase{4, 64, 32, false}, {4, 40, 16, true}, {2, 48, 16, true}, {8, 32, 32, true}, {3, 32, 16, true}}) {
    const int64_t blocks = (c.k + c.block - 1) / c.block, n = 5;
    const Tensor a = random_tensor({3, c.k}, random), scales = random_tensor({n, blocks}, random, 0.01F, 0.1F);
    const Tensor b = random_bytes(DType::u8, {n, blocks, c.block * c.bits / 8}, random);
    const Tensor zeros = random_bytes(DType::u8, {n, (blocks * c.bits + 7) / 8}, random);
    OpTester node = microsoft("MatMulNBits");
    node.input(a).constant(b).constant(scales);
    if (c.has_zeros) node.constant(zeros);
    node.with("K", c.k).with("N", static_cast<int>(n)).with("bits", c.bits).with("block_size", c.block);
    SCOPED_TRACE(c.bits);
    const Tensor y = node.result();
    ASSERT_EQ(y.dims(), (Dims{3, n}));
    expect_near(y, expected_nbits(c, a, b, scales, zeros, n), 1e-3);
  }
}

TEST(MatMulNBits, RefusesWeightsThatFitNotItsAttributes) {
  const Tensor a(DType::f32, {1, 32}), b(DType::u8, {2, 2, 8}), scales(DType::f32, {2, 2});
  const auto node = [&](int n, int block) {
    return microsoft("MatMulNBits")
        .input(a)
        .constant(b)
        .constant(scales)
        .with("K", 32)
        .with("N", n)
        .with("block_size", block);
  };
  EXPECT_NO_THROW(node(2, 16).result());
  EXPECT_THROW(node(3, 16).result(), Error);
  EXPECT_THROW(node(2, 32).result(), Error);
  EXPECT_THROW(node(2, 15).result(), Error);
  EXPECT_THROW(node(-2, 16).result(), Error);
}

TEST(GatherBlockQuantized, UnpacksTheRowsThatItGathers) {
  Tensor table(DType::u8, {2, 16}), scales = tensor<float>({2, 2}, {1, 2, 0.5F, 4});
  for (int i = 0; i < 32; ++i) table.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(i % 16 | (15 - i % 16) << 4);
  const Tensor y = microsoft("GatherBlockQuantized")
                       .input(table)
                       .input(testing::longs({-1}))
                       .input(scales)
                       .with("block_size", 16)
                       .with("quantize_axis", 1)
                       .result();
  ASSERT_EQ(y.dims(), (Dims{1, 32}));
  for (int i = 0; i < 32; ++i) {
    const int byte = i / 2, value = i % 2 == 0 ? byte : 15 - byte;
    EXPECT_EQ(y.data<float>()[i], static_cast<float>(value - 8) * (i < 16 ? 0.5F : 4)) << i;
  }
}

}  // namespace
}  // namespace lathe
