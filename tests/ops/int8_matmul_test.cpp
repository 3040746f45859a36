// Products of integers: MatMulInteger, QLinearMatMul and lathe::QuantizedMatMul, generated code against references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "jit/kernels/common/int8_dot.h"
#include "ops/int8/int8_lower.h"
#include "ops/int8/int8_pack.h"
#include "ops/int8/int8_product.h"
#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;
using testing::random_tensor;

// With both extremes often: nothing may saturate.
Tensor random_bytes(DType dtype, const Dims& dims, std::mt19937& random) {
  Tensor tensor(dtype, dims);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const unsigned kind = random() % 4;
    bytes[i] = kind == 0 ? 0x80 : kind == 1 ? 0x7f : kind == 2 ? 0xff : static_cast<uint8_t>(random());
  }
  return tensor;
}

struct ProductCase {
  Dims a, b;
  DType a_dtype = DType::u8, b_dtype = DType::i8;
  Dims a_zero = {}, b_zero = {};  // extents of the zero points
  bool has_zeros = true;
  bool constant_b = true, constant_zeros = true;
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const ProductCase& c) {
    return out << to_string(c.a) << " " << name_of(c.a_dtype) << " * " << to_string(c.b) << " " << name_of(c.b_dtype)
               << (c.constant_b ? " constant" : "") << " zeros " << to_string(c.a_zero) << " " << to_string(c.b_zero)
               << (c.has_zeros ? "" : " absent") << (c.constant_zeros ? " constant" : "") << " threads " << c.threads;
  }
};

const std::vector<ProductCase>& product_cases() {
  static const std::vector<ProductCase> kCases = {
      {.a = {40, 64}, .b = {64, 48}},
      {.a = {40, 64}, .b = {64, 48}, .has_zeros = false},
      {.a = {17, 31}, .b = {31, 37}, .threads = 2},
      {.a = {1, 130}, .b = {130, 70}, .b_dtype = DType::u8},
      {.a = {5, 9}, .b = {9, 3}, .a_dtype = DType::i8},
      {.a = {33, 260}, .b = {260, 65}, .a_dtype = DType::i8, .b_dtype = DType::u8, .threads = 2},
      {.a = {2, 3, 20, 36}, .b = {3, 36, 24}, .b_dtype = DType::u8, .constant_b = false, .threads = 2},
      {.a = {2, 3, 20, 36}, .b = {36, 24}, .constant_zeros = false},
      {.a = {3, 1, 20, 36}, .b = {1, 2, 36, 24}, .constant_b = false, .constant_zeros = false},
      {.a = {7}, .b = {7, 5}},
      {.a = {4, 7}, .b = {7}, .constant_b = false},
      {.a = {20, 37}, .b = {37, 40}, .b_zero = {40}},
      {.a = {20, 37}, .b = {37, 40}, .a_dtype = DType::i8, .a_zero = {20}, .b_zero = {40}, .threads = 2},
      {.a = {20, 37}, .b = {37, 40}, .a_zero = {20}, .constant_b = false, .constant_zeros = false},
      {.a = {30, 17000}, .b = {17000, 20}},
      {.a = {4, 0}, .b = {0, 6}},
      {.a = {0, 8}, .b = {8, 6}},
  };
  return kCases;
}

OpTester& add_operand(OpTester& tester, const Tensor& tensor, bool is_constant) {
  return is_constant ? tester.constant(tensor) : tester.input(tensor);
}

TEST(Int8MatMul, MatMulIntegerIsExact) {
  std::mt19937 random(3);
  for (const ProductCase& c : product_cases()) {
    for (const Isa isa : testing::int8_isas_here()) {
      SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
      OpTester tester("MatMulInteger", 10);
      tester.input(random_bytes(c.a_dtype, c.a, random));
      add_operand(tester, random_bytes(c.b_dtype, c.b, random), c.constant_b);
      if (c.has_zeros) {
        add_operand(tester, random_bytes(c.a_dtype, c.a_zero, random), c.constant_zeros);
        add_operand(tester, random_bytes(c.b_dtype, c.b_zero, random), c.constant_zeros);
      }
      const auto got = tester.lowered(isa, c.threads);
      ASSERT_TRUE(got);
      ASSERT_EQ(testing::list<int32_t>((*got)[0]), testing::list<int32_t>(tester.result()));
    }
  }
}

// From -most to most.
Tensor random_weights(const Dims& dims, int most, std::mt19937& random) {
  Tensor weights = random_bytes(DType::i8, dims, random);
  for (int64_t i = 0; i < weights.size(); ++i) {
    int8_t& weight = weights.mutable_data<int8_t>()[i];
    weight = static_cast<int8_t>(std::clamp<int>(weight, -most, most));
  }
  return weights;
}

// By AVX2 alone, with weights from -most to most. Zero points are not near 0, where fours are added, but where there
// are none.
void expect_bytes_multiplied(std::span<const ProductCase> cases, int most, const std::string& kernel) {
  std::mt19937 random(8);
  for (const ProductCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << c);
    OpTester tester("MatMulInteger", 10);
    tester.input(random_bytes(c.a_dtype, c.a, random));
    tester.constant(random_weights(c.b, most, random));
    if (c.has_zeros) {
      Tensor zero = random_bytes(c.a_dtype, {}, random);
      *static_cast<uint8_t*>(zero.mutable_raw()) |= 64;
      add_operand(tester, zero, c.constant_zeros);
    }
    const auto got = tester.lowered(Isa::avx2, c.threads);
    ASSERT_TRUE(got);
    ASSERT_EQ(testing::list<int32_t>((*got)[0]), testing::list<int32_t>(tester.result()));
    EXPECT_THAT(tester.kernels(), ::testing::HasSubstr(kernel));
  }
}

TEST(Int8MatMul, WeightsOfSevenBitsAreMultipliedAsBytes) {
  const ProductCase cases[] = {
      {.a = {40, 64}, .b = {64, 48}},
      {.a = {1, 130}, .b = {130, 70}, .a_dtype = DType::i8},
      {.a = {33, 260}, .b = {260, 65}, .a_dtype = DType::i8, .constant_zeros = false, .threads = 2},
      {.a = {2, 3, 20, 36}, .b = {3, 36, 24}, .constant_zeros = false},
      {.a = {2, 3, 20, 37}, .b = {37, 24}, .a_dtype = DType::i8, .has_zeros = false},
      {.a = {8, 0}, .b = {0, 6}},
  };
  expect_bytes_multiplied(cases, kMostOfSevenBits, "gemm int8 u8s7");
  const ProductCase around_zero[] = {{.a = {17, 31}, .b = {31, 37}, .has_zeros = false, .threads = 2}};
  expect_bytes_multiplied(around_zero, kMostOfSevenBits, "gemm int8 u8s8_halved");
}

TEST(Int8MatMul, FewRowsAreMultipliedBySigns) {
  const ProductCase cases[] = {
      {.a = {1, 64}, .b = {64, 148}},
      {.a = {2, 131}, .b = {131, 70}, .a_dtype = DType::i8},
      {.a = {3, 260}, .b = {260, 65}, .constant_zeros = false, .threads = 2},
      {.a = {4, 32}, .b = {32, 37}, .has_zeros = false},
      {.a = {2, 3, 5, 36}, .b = {3, 36, 24}, .a_dtype = DType::i8, .constant_zeros = false},
      {.a = {12, 37}, .b = {37, 24}, .a_dtype = DType::i8, .has_zeros = false, .threads = 2},
  };
  expect_bytes_multiplied(cases, kMostBesideSigns, "gemm int8 s8s8");
  const ProductCase widened[] = {{.a = {2, 131}, .b = {131, 70}}, {.a = {12, 37}, .b = {37, 24}}};
  expect_bytes_multiplied(std::span(widened).first(1), 128, "gemm int8 pairs");
  expect_bytes_multiplied(std::span(widened).last(1), 128, "gemm int8 crossed");
}

// Elements of A are within 64 of their zero point, but for one of `large_of`.
void expect_large_bytes_halved(const ProductCase& c, int zero, unsigned large_of, const std::string& kernel,
                               std::mt19937& random, int most_of_b = 128) {
  SCOPED_TRACE(::testing::Message() << c << " zero " << zero << " one of " << large_of);
  Tensor a = random_bytes(c.a_dtype, c.a, random);
  auto* bytes = static_cast<uint8_t*>(a.mutable_raw());
  for (int64_t i = 0; i < a.size(); ++i) {
    if (random() % large_of == 0) continue;
    const int least = std::max(zero - 64, c.a_dtype == DType::i8 ? -128 : 0);
    bytes[i] = static_cast<uint8_t>(least + bytes[i] % (zero + 65 - least));
  }
  OpTester tester("MatMulInteger", 10);
  tester.input(a).constant(random_weights(c.b, most_of_b, random));
  if (c.has_zeros) {
    Tensor point(c.a_dtype, {});
    *static_cast<uint8_t*>(point.mutable_raw()) = static_cast<uint8_t>(zero);
    tester.constant(point);
  }
  const auto got = tester.lowered(Isa::avx2, c.threads);
  ASSERT_TRUE(got);
  ASSERT_EQ(testing::list<int32_t>((*got)[0]), testing::list<int32_t>(tester.result()));
  EXPECT_THAT(tester.kernels(), ::testing::HasSubstr(kernel));
}

TEST(Int8MatMul, LargeBytesAreHalvedWhereMostAreSmall) {
  const ProductCase cases[] = {
      {.a = {40, 64}, .b = {64, 48}},       {.a = {17, 31}, .b = {31, 37}, .threads = 2},
      {.a = {2, 3, 20, 37}, .b = {37, 24}}, {.a = {128, 300}, .b = {300, 90}, .threads = 2},
      {.a = {13, 8}, .b = {8, 6}},
  };
  std::mt19937 random(9);
  for (const ProductCase& c : cases) {
    for (const unsigned large_of : {1U, 20U, 500U}) {
      expect_large_bytes_halved(c, static_cast<int>(random() % 33), large_of, "gemm int8 u8s8_halved", random);
      expect_large_bytes_halved(c, static_cast<int>(random() % 33), large_of, "gemm int8 u8s8_halved", random,
                                kMostOfSevenBits);
      expect_large_bytes_halved(c, 96 + static_cast<int>(random() % 65), large_of, "gemm int8 s8u8_halved", random);
      expect_large_bytes_halved(c, 70, large_of, "widen", random);  // neither way
      ProductCase with_signs = c;
      with_signs.a_dtype = DType::i8;
      expect_large_bytes_halved(with_signs, static_cast<int>(random() % 65) - 32, large_of, "gemm int8 s8u8_halved",
                                random);
      with_signs.has_zeros = false;
      expect_large_bytes_halved(with_signs, 0, large_of, "gemm int8 s8u8_halved", random);
      if (HasFailure()) return;
    }
  }
}

// By AVX2 alone, whatever the zero point turns out to be.
TEST(Int8MatMul, ThereIsAWayForEachZeroPoint) {
  std::mt19937 random(12);
  for (const int zero : {0, 3, 99, 100, 101, 128, 154, 155, 200, 252, 255}) {
    for (const auto& [rows, depth, columns] : {std::tuple{40, 64, 48}, {17, 31, 37}, {128, 300, 90}, {13, 8, 6}}) {
      for (const unsigned large_of : {1U, 50U}) {
        SCOPED_TRACE(::testing::Message() << "zero " << zero << " " << rows << "x" << depth << "x" << columns);
        Tensor a = random_bytes(DType::u8, {rows, depth}, random);
        for (int64_t i = 0; i < a.size(); ++i) {
          uint8_t& byte = a.mutable_data<uint8_t>()[i];
          if (random() % large_of != 0) byte = static_cast<uint8_t>(std::clamp(zero - 30 + byte % 61, 0, 255));
        }
        OpTester tester("QuantizedMatMul", 1, "lathe");
        tester.input(a).constant(random_weights({depth, columns}, 128, random));
        tester.constant(random_tensor({columns}, random, 1e-4F, 3e-4F));
        tester.input(testing::tensor<uint8_t>({}, {static_cast<uint8_t>(zero)})).absent();
        const auto got = tester.lowered(Isa::avx2, 2);
        ASSERT_TRUE(got);
        const Tensor expected = tester.result();
        for (int64_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ((*got)[0].data<float>()[i], expected.data<float>()[i]) << "element " << i;
        EXPECT_THAT(tester.kernels(), ::testing::HasSubstr("invert rows"));
      }
    }
  }
}

TEST(Int8MatMul, FindsWeightsBeyondABound) {
  std::vector<int8_t> weights(9001, 0);
  EXPECT_TRUE(are_at_most(weights, kMostOfSevenBits));
  for (const size_t at : {size_t{0}, size_t{4097}, weights.size() - 1}) {
    for (const int8_t fitting : {int8_t{-64}, int8_t{64}}) {
      weights[at] = fitting;
      EXPECT_TRUE(are_at_most(weights, kMostOfSevenBits));
      weights[at] = static_cast<int8_t>(fitting > 0 ? fitting + 1 : fitting - 1);
      EXPECT_FALSE(are_at_most(weights, kMostOfSevenBits));
      weights[at] = 0;
    }
  }
  EXPECT_TRUE(are_at_most({}, 0));
}

// Equal but for ties that rounding in float32 decides otherwise.
void expect_quantized(const Tensor& got, const Tensor& expected) {
  ASSERT_EQ(got.dims(), expected.dims());
  const std::vector<double> left = reals_of(got), right = reals_of(expected);
  int64_t different = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_NEAR(left[i], right[i], 1) << "element " << i;
    different += left[i] != right[i];
  }
  EXPECT_LE(different, 1 + got.size() / 200);
}

TEST(Int8MatMul, QLinearMatMulRequantizes) {
  std::mt19937 random(4);
  for (const Isa isa : testing::int8_isas_here()) {
    for (const DType dtype : {DType::u8, DType::i8}) {
      for (const bool per_column : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << name_of(dtype) << " " << per_column);
        OpTester tester("QLinearMatMul", 21);
        tester.input(random_bytes(dtype, {2, 19, 70}, random)).constant(Tensor::scalar(0.02F));
        tester.constant(random_bytes(dtype, {}, random));
        tester.constant(random_bytes(dtype, {70, 43}, random));
        tester.constant(per_column ? random_tensor({43}, random, 0.01F, 0.03F) : Tensor::scalar(0.03F));
        tester.constant(random_bytes(dtype, per_column ? Dims{43} : Dims{}, random));
        tester.constant(Tensor::scalar(2.5F)).constant(random_bytes(dtype, {}, random));
        const auto got = tester.lowered(isa, 2);
        ASSERT_TRUE(got);
        expect_quantized((*got)[0], tester.result());
      }
    }
  }
}

// clamp(round((x0 + bias) / 0.5 + 0.1 * residual) + 3) or the same without rounding
Expression requantization(DType output) {
  Expression e;
  e.inputs = {DType::f32, DType::f32, DType::u8};
  e.output = output;
  const int sum = e.add({ExprOp::add, e.add({ExprOp::input, 0}), e.add({ExprOp::input, 1})});
  const int scaled = e.add({ExprOp::div, sum, e.add({.op = ExprOp::constant, .value = 0.5F})});
  const int tenth = e.add({.op = ExprOp::constant, .value = 0.1F});
  const int residual = e.add({ExprOp::mul, e.add({ExprOp::input, 2}), tenth});
  const int all = e.add({ExprOp::add, scaled, residual});
  if (output == DType::f32) return e;
  const int three = e.add({.op = ExprOp::constant, .value = 3});
  e.add({ExprOp::add, e.add({ExprOp::round_even, all}), three});
  return e;
}

// As ONNX allows, and ONNX Runtime has it: 40,000 * 255 * 255 is 2^32 - 1,693,967,296.
TEST(Int8MatMul, SumsBeyond32BitsWrap) {
  constexpr int64_t kDepth = 40000, kWrapped = -1693967296;
  const auto full = [](const Dims& dims) {
    Tensor tensor(DType::u8, dims);
    std::memset(tensor.mutable_raw(), 255, tensor.bytes());
    return tensor;
  };
  const Tensor a = full({1, kDepth}), b = full({kDepth, 3});
  const Tensor zero = testing::tensor<uint8_t>({}, {0}), zero_y = testing::tensor<uint8_t>({}, {100});
  const auto scalar = [](float value) { return Tensor::scalar<float>(value); };
  OpTester plain("MatMulInteger", 10), requantized("QLinearMatMul", 21), scaled("QuantizedMatMul", 1, "lathe");
  plain.input(a).constant(b);
  requantized.input(a).constant(scalar(0.5f)).constant(zero).constant(b).constant(scalar(0.5f)).constant(zero);
  requantized.constant(scalar(1e7f)).constant(zero_y);
  scaled.input(a).constant(b).constant(scalar(0.5f));
  const std::pair<OpTester*, double> nodes[] = {{&plain, kWrapped},
                                                {&requantized, 100 - 42},
                                                {&scaled, static_cast<float>(kWrapped * 0.5)}};  // 1.69e9 / 4e7: 42.3
  for (const auto& [node, expected] : nodes) {
    std::vector<Tensor> results{node->result()};
    for (const Isa isa : testing::int8_isas_here()) results.push_back(node->lowered(isa, 1).value()[0]);
    for (const Tensor& result : results) {
      for (const double value : reals_of(result)) EXPECT_EQ(value, expected);
    }
  }
}

TEST(Int8MatMul, QuantizedMatMulAppliesItsEpilogue) {
  std::mt19937 random(5);
  for (const Isa isa : testing::int8_isas_here()) {
    for (const DType output : {DType::u8, DType::i8, DType::f32}) {
      for (const int n : {32, 45, 100}) {
        SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << name_of(output) << " n=" << n);
        OpTester tester("QuantizedMatMul", 1, "lathe");
        tester.input(random_bytes(DType::u8, {3, 20, 72}, random)).constant(random_bytes(DType::i8, {72, n}, random));
        tester.constant(random_tensor({n}, random, 1e-4F, 3e-4F)).constant(random_bytes(DType::u8, {}, random));
        tester.absent();
        tester.epilogue(requantization(output),
                        {random_tensor({n}, random), random_bytes(DType::u8, {3, 20, n}, random)}, n != 45);
        const auto got = tester.lowered(isa, 2);
        ASSERT_TRUE(got);
        const Tensor expected = tester.result();
        if (output != DType::f32) {
          expect_quantized((*got)[0], expected);
          continue;
        }
        for (int64_t i = 0; i < expected.size(); ++i) {
          const float right = expected.data<float>()[i];
          ASSERT_NEAR((*got)[0].data<float>()[i], right, 1e-4 * (1 + std::abs(right))) << "element " << i;
        }
      }
    }
  }
}

// clamp(round(gelu(x0 + bias) / 0.03) + 5), in the ways in which exporters write GELU
Expression requantized_gelu(DType output, bool is_halved_first) {
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  e.output = output;
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const int x = e.add({ExprOp::add, e.add({ExprOp::input, 0}), e.add({ExprOp::input, 1})});
  const int argument =
      is_halved_first ? e.add({ExprOp::mul, x, constant(0.70710677F)}) : e.add({ExprOp::div, x, constant(1.41421354F)});
  const int phi = e.add({ExprOp::add, e.add({ExprOp::erf, argument}), constant(1)});
  const int half = constant(0.5F);
  const int result = is_halved_first ? e.add({ExprOp::mul, e.add({ExprOp::mul, x, half}), phi})
                                     : e.add({ExprOp::mul, e.add({ExprOp::mul, x, phi}), half});
  const int rounded = e.add({ExprOp::round_even, e.add({ExprOp::div, result, constant(0.03F)})});
  e.add({ExprOp::add, rounded, constant(5)});
  return e;
}

TEST(Int8MatMul, QuantizedMatMulStoresGelu) {
  std::mt19937 random(9);
  for (const Isa isa : testing::int8_isas_here()) {
    for (const DType output : {DType::u8, DType::i8}) {
      for (const int n : {32, 45, 100}) {
        // One row, a few, and more than a tile has.
        for (const int m : {1, 5, 40}) {
          for (const float scale : {1e-5F, 1e-3F}) {
            SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << name_of(output) << " " << m << "x" << n);
            OpTester tester("QuantizedMatMul", 1, "lathe");
            tester.input(random_bytes(DType::u8, {m, 72}, random)).constant(random_bytes(DType::i8, {72, n}, random));
            tester.constant(Tensor::scalar(scale)).constant(random_bytes(DType::u8, {}, random)).absent();
            tester.epilogue(requantized_gelu(output, m == 5), {random_tensor({n}, random)}, n != 45);
            const auto got = tester.lowered(isa, 2);
            ASSERT_TRUE(got);
            expect_quantized((*got)[0], tester.result());
          }
        }
      }
    }
  }
}

// round(gelu((clamp(round((x0 + bias) / 0.02) + 100) - 100) * 0.02) / 0.01) + 20, of bytes in the middle, too
Expression gelu_of_bytes(DType output) {
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  e.output = output;
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const auto rounded = [&](int x, float scale, float zero) {
    return e.add({ExprOp::add, e.add({ExprOp::round_even, e.add({ExprOp::div, x, constant(scale)})}), constant(zero)});
  };
  const int sum = e.add({ExprOp::add, e.add({ExprOp::input, 0}), e.add({ExprOp::input, 1})});
  const int low = e.add({ExprOp::max, rounded(sum, 0.02F, 100), constant(0)});
  const int byte = e.add({ExprOp::min, low, constant(255)});
  const int x = e.add({ExprOp::mul, e.add({ExprOp::sub, byte, constant(100)}), constant(0.02F)});
  const int phi =
      e.add({ExprOp::add, e.add({ExprOp::erf, e.add({ExprOp::div, x, constant(1.41421354F)})}), constant(1)});
  rounded(e.add({ExprOp::mul, e.add({ExprOp::mul, x, phi}), constant(0.5F)}), 0.02F, 20);
  return e;
}

TEST(Int8MatMul, QuantizedMatMulLooksUpWhatFollowsAByte) {
  std::mt19937 random(9);
  for (const Isa isa : testing::int8_isas_here()) {
    for (const DType output : {DType::u8, DType::i8}) {
      for (const int n : {16, 32, 45, 100}) {
        for (const int m : {1, 5, 40}) {
          SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << name_of(output) << " " << m << "x" << n);
          OpTester tester("QuantizedMatMul", 1, "lathe");
          tester.input(random_bytes(DType::u8, {m, 72}, random)).constant(random_bytes(DType::i8, {72, n}, random));
          tester.constant(Tensor::scalar(1e-5F)).constant(random_bytes(DType::u8, {}, random)).absent();
          tester.epilogue(gelu_of_bytes(output), {random_tensor({n}, random)}, n != 45);
          const auto got = tester.lowered(isa, 2);
          ASSERT_TRUE(got);
          expect_quantized((*got)[0], tester.result());
        }
      }
    }
  }
}

// round(((x0 - 7) * 0.02 + (3 - x1) * 0.05) / 0.04) + 5
Expression requantized_sum() {
  Expression e;
  e.inputs = {DType::u8, DType::i8};
  e.output = DType::u8;
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const int a = e.add({ExprOp::sub, e.add({ExprOp::input, 0}), constant(7)});
  const int b = e.add({ExprOp::sub, constant(3), e.add({ExprOp::input, 1})});
  const int left = e.add({ExprOp::mul, a, constant(0.02F)}), right = e.add({ExprOp::mul, constant(0.05F), b});
  const int quotient = e.add({ExprOp::div, e.add({ExprOp::add, left, right}), constant(0.04F)});
  e.add({ExprOp::add, e.add({ExprOp::round_even, quotient}), constant(5)});
  return e;
}

TEST(RequantizedSum, BecomesOneMultipleOfEachOperand) {
  std::mt19937 random(10);
  Expression joined = requantized_sum();
  join_requantization(joined);
  std::vector<double> products;
  for (const ExprNode& node : joined.nodes) {
    EXPECT_NE(node.op, ExprOp::div);
    if (node.op == ExprOp::mul) products.push_back(joined.nodes[static_cast<size_t>(node.b)].value);
  }
  // The last two are read.
  ASSERT_GE(products.size(), 2U);
  EXPECT_EQ(products[products.size() - 2], 0.5);  // exactly: ties stay ties
  EXPECT_NEAR(products.back(), -1.25, 1e-6);
  for (int i = 0; i < 1000; ++i) {
    const float x[] = {static_cast<float>(random() % 256), static_cast<float>(random() % 256) - 128};
    EXPECT_NEAR(evaluate(joined, x), evaluate(requantized_sum(), x), 1);
  }
}

TEST(Int8MatMul, QuantizedMatMulTakesTransposedOperands) {
  std::mt19937 random(6);
  for (const Isa isa : testing::int8_isas_here()) {
    for (const bool turns_rows : {false, true}) {
      // Columns beyond a panel, and rows of A beyond those whose sums are taken together.
      const int64_t columns = 30 + static_cast<int64_t>(random() % 50),
                    depth = 16 * (1 + static_cast<int64_t>(random() % 3));
      SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << turns_rows << " " << columns << " " << depth);
      OpTester tester("QuantizedMatMul", 1, "lathe");
      tester.with("perm_a", std::vector<int64_t>{0, 2, 1, 3});
      tester.with("perm_b", turns_rows ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 2, 1, 3});
      tester.input(random_bytes(DType::u8, {2, 21, 3, depth}, random));
      tester.input(
          random_bytes(DType::u8, turns_rows ? Dims{2, columns, 3, depth} : Dims{2, depth, 3, columns}, random));
      tester.constant(Tensor::scalar(0.01F));
      tester.constant(random_bytes(DType::u8, {}, random)).constant(random_bytes(DType::u8, {}, random));
      const auto got = tester.lowered(isa, 2);
      ASSERT_TRUE(got);
      const Tensor expected = tester.result();
      ASSERT_EQ((*got)[0].dims(), expected.dims());
      for (int64_t i = 0; i < expected.size(); ++i) {
        const float right = expected.data<float>()[i];
        ASSERT_NEAR((*got)[0].data<float>()[i], right, 1e-5 * (1 + std::abs(right))) << "element " << i;
      }
    }
  }
}

// As measured on a Zen 5.
TEST(Int8MatMul, TwoRowsTakeNarrowerPanelsBesideTwoMultipliers) {
  const auto vectors = [](int64_t rows, const CoreRates& rates) {
    Int8Problem problem;
    problem.isa = Isa::avx512_vnni;
    problem.m = rows;
    problem.n = problem.k = 4096;
    return default_int8_plan(problem, rates).vecs;
  };
  EXPECT_LT(vectors(2, kZen5), vectors(2, kZen4));
  EXPECT_EQ(vectors(2, kXeon), vectors(2, kZen4)) << "not measured";
  EXPECT_EQ(vectors(3, kZen5), vectors(3, kZen4));
}

TEST(Int8MatMul, DynamicQuantizeLinearFindsItsRange) {
  std::mt19937 random(8);
  for (const int64_t count : {0, 1, 17, 100000}) {
    for (const float low : {-3.0F, 0.5F}) {
      SCOPED_TRACE(::testing::Message() << count << " from " << low);
      OpTester tester("DynamicQuantizeLinear", 11);
      tester.input(random_tensor({count}, random, low, 2)).outputs(3);
      const std::vector<Tensor> expected = tester.reference();
      for (const Isa isa : testing::int8_isas_here()) {
        const auto got = tester.lowered(isa, 2);
        ASSERT_TRUE(got);
        EXPECT_EQ(testing::list<uint8_t>((*got)[0]), testing::list<uint8_t>(expected[0]));
        EXPECT_EQ(testing::list<float>((*got)[1]), testing::list<float>(expected[1]));
        EXPECT_EQ(testing::list<uint8_t>((*got)[2]), testing::list<uint8_t>(expected[2]));
      }
    }
  }
}

}  // namespace
}  // namespace lathe
