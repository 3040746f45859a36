// Elementwise operators beyond float32 arithmetic: plain loops over other types, and functions that are expressions.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OpTester;

Tensor random_of(DType dtype, const Dims& dims, std::mt19937& random, int low = -20, int high = 20) {
  Tensor tensor(dtype, dims);
  std::uniform_int_distribution<int> uniform(low, high);
  for (int64_t i = 0; i < tensor.size(); ++i) store_real(tensor, i, uniform(random));
  return tensor;
}

void expect_same_bytes(const Tensor& made, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(made.dtype(), expected.dtype()) << what;
  ASSERT_EQ(made.dims(), expected.dims()) << what;
  EXPECT_TRUE(made.bytes() == 0 || std::memcmp(made.raw(), expected.raw(), made.bytes()) == 0) << what;
}

struct Shapes {
  Dims a, b;
};
const Shapes kShapes[] = {{{37}, {37}},
                          {{5, 19}, {19}},
                          {{4, 1, 7}, {1, 6, 7}},
                          {{3, 5}, {}},
                          {{}, {2, 33}},
                          {{0, 4}, {1, 4}},
                          {{2, 9000}, {2, 1}},
                          {{1}, {1}},
                          {{130, 65}, {1, 65}},
                          {{2, 3, 1, 5}, {4, 1}},
                          // Short rows, which are joined.
                          {{1, 77, 1, 4, 1, 2}, {77, 8, 4, 3, 2}},
                          {{1500, 2}, {1500, 1}},
                          {{700, 3}, {3}},
                          {{1, 5, 6}, {41, 5, 1}},
                          {{2, 300, 1, 7}, {300, 3, 1}},
                          {{600, 1}, {2, 1, 2}}};

TEST(RowLoops, AgreeWithTheReferencesOfBinaryOperators) {
  std::mt19937 random(5);
  const struct {
    const char* op;
    std::vector<DType> types;
  } cases[] = {{"Max", {DType::i64, DType::i32, DType::f64, DType::u8}},
               {"Min", {DType::i64, DType::i32, DType::f64, DType::u8}},
               {"Pow", {DType::i64, DType::i32, DType::f64}},
               {"BitwiseAnd", {DType::i64, DType::i32, DType::u8}},
               {"BitwiseOr", {DType::i64, DType::i32, DType::u8}},
               {"BitwiseXor", {DType::i64, DType::i32, DType::u8}}};
  for (const auto& [op, types] : cases) {
    for (const DType dtype : types) {
      const int low = dtype == DType::u8 || std::string(op) == "Pow" ? 0 : -20;
      for (const Shapes& shapes : kShapes) {
        OpTester tester(op);
        tester.input(random_of(dtype, shapes.a, random, low)).input(random_of(dtype, shapes.b, random, low, 9));
        const auto made = tester.lowered(Isa::avx2, 2);
        ASSERT_TRUE(made) << op;
        expect_same_bytes((*made)[0], tester.result(), op + (" " + to_string(shapes.a) + " " + to_string(shapes.b)));
      }
    }
  }
}

// Bits beyond the element's are none, or the sign.
int64_t shifted(DType dtype, int64_t x, int64_t count, bool is_left) {
  const int bits = bits_of(dtype);
  if (count >= bits) return !is_left && is_signed(dtype) && x < 0 ? -1 : 0;
  if (!is_left) return x >> count;
  const int64_t all = static_cast<int64_t>(static_cast<uint64_t>(x) << count);
  const uint64_t kept = static_cast<uint64_t>(all) << (64 - bits);
  return is_signed(dtype) ? static_cast<int64_t>(kept) >> (64 - bits) : static_cast<int64_t>(kept >> (64 - bits));
}

TEST(RowLoops, ShiftInBothDirections) {
  std::mt19937 random(6);
  for (const DType dtype :
       {DType::u8, DType::i8, DType::u16, DType::i16, DType::u32, DType::i32, DType::u64, DType::i64}) {
    for (const bool is_left : {true, false}) {
      for (const Shapes& shapes : kShapes) {
        OpTester tester("BitShift");
        tester.input(random_of(dtype, shapes.a, random, is_signed(dtype) ? -120 : 0, 120));
        tester.input(random_of(dtype, shapes.b, random, 0, bits_of(dtype) + 3));
        tester.with("direction", is_left ? "LEFT" : "RIGHT");
        const auto made = tester.lowered(Isa::avx2, 2);
        ASSERT_TRUE(made) << name_of(dtype);
        expect_same_bytes((*made)[0], tester.result(), std::string(name_of(dtype)));
      }
      const Tensor x = random_of(dtype, {67}, random, is_signed(dtype) ? -120 : 0, 120),
                   counts = random_of(dtype, {67}, random, 0, bits_of(dtype) + 3);
      OpTester tester("BitShift");
      tester.input(x).input(counts).with("direction", is_left ? "LEFT" : "RIGHT");
      const std::vector<int64_t> got = integers_of_any(tester.result()), from = integers_of_any(x),
                                 by = integers_of_any(counts);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], shifted(dtype, from[i], by[i], is_left)) << by[i];
    }
  }
}

TEST(RowLoops, TakeBitsOfEveryWidth) {
  std::mt19937 random(16);
  for (const DType dtype : {DType::u16, DType::i16, DType::i8, DType::u32, DType::u64}) {
    for (const char* op : {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}) {
      OpTester tester(op);
      tester.input(random_of(dtype, {3, 45}, random, 0, 120));
      if (std::string(op) != "BitwiseNot") tester.input(random_of(dtype, {45}, random, 0, 120));
      const auto made = tester.lowered(Isa::avx2, 1);
      ASSERT_TRUE(made) << op;
      expect_same_bytes((*made)[0], tester.result(), op);
    }
  }
}

TEST(RowLoops, RaiseToKnownPowers) {
  std::mt19937 random(7);
  for (const DType dtype : {DType::i64, DType::i32, DType::f64}) {
    for (const int power : {0, 1, 2, 3, 5}) {
      OpTester tester("Pow");
      tester.input(random_of(dtype, {3, 41}, random));
      tester.constant(power == 5 ? Tensor::from<int64_t>({1}, {5}) : random_of(dtype, {}, random, power, power));
      const auto made = tester.lowered(Isa::avx2, 1);
      if (power == 5 && dtype != DType::i64) continue;  // of mixed types: by the reference
      ASSERT_TRUE(made) << power;
      const std::vector<double> got = reals_of((*made)[0]), expected = reals_of(tester.result());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_DOUBLE_EQ(got[i], expected[i]) << power;
    }
  }
}

TEST(RowLoops, ClipIntegersAndWideFloats) {
  std::mt19937 random(15);
  for (const DType dtype : {DType::i64, DType::i32, DType::f64}) {
    for (const bool has_high : {true, false}) {
      OpTester tester("Clip", 13);
      tester.input(random_of(dtype, {3, 41}, random)).constant(random_of(dtype, {}, random, -7, -3));
      if (has_high) tester.constant(random_of(dtype, {}, random, 4, 9));
      const auto made = tester.lowered(Isa::avx2, 1);
      ASSERT_TRUE(made);
      expect_same_bytes((*made)[0], tester.result(), std::string(name_of(dtype)));
    }
  }
}

TEST(RowLoops, RaiseFloatsToKnownIntegers) {
  std::mt19937 random(8);
  OpTester tester("Pow");
  tester.input(testing::random_tensor({3, 41}, random, -3, 3)).constant(Tensor::from<int64_t>({1}, {3}));
  for (const Isa isa : isas_here()) {
    const auto made = tester.lowered(isa, 1);
    ASSERT_TRUE(made);
    const std::vector<double> got = reals_of((*made)[0]), expected = reals_of(tester.result());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 4e-7 * std::abs(expected[i]));
  }
}

TEST(RowLoops, AgreeWithTheReferencesOfUnaryOperators) {
  std::mt19937 random(9);
  const struct {
    const char* op;
    DType dtype;
  } cases[] = {{"Neg", DType::i64},   {"Neg", DType::f64},       {"Abs", DType::i64},  {"Abs", DType::i32},
               {"Sign", DType::i64},  {"Sign", DType::f64},      {"Sqrt", DType::f64}, {"Erf", DType::f64},
               {"Floor", DType::f64}, {"BitwiseNot", DType::i32}};
  for (const auto& [op, dtype] : cases) {
    for (const Dims& dims : {Dims{37}, Dims{}, Dims{0, 3}, Dims{5, 2000}}) {
      OpTester tester(op);
      tester.input(random_of(dtype, dims, random, std::string(op) == "Sqrt" ? 1 : -20));
      const auto made = tester.lowered(Isa::avx2, 2);
      ASSERT_TRUE(made) << op;
      expect_same_bytes((*made)[0], tester.result(), op);
    }
  }
}

TEST(PlainReductions, AgreeWithTheReferences) {
  std::mt19937 random(10);
  const struct {
    const char* op;
    std::vector<DType> types;
  } cases[] = {{"ReduceMax", {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64, DType::f64}},
               {"ReduceMin", {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64, DType::f64}},
               {"ReduceSum", {DType::i32, DType::i64, DType::f64}},
               {"ReduceMean", {DType::f64}}};
  const Dims shapes[] = {{3, 70, 5}, {4, 300}, {2, 3, 4, 5}, {1, 1, 200}};
  for (const auto& [op, types] : cases) {
    for (const DType dtype : types) {
      for (const Dims& dims : shapes) {
        for (const std::vector<int64_t>& axes : {std::vector<int64_t>{-1}, std::vector<int64_t>{0}, {0, 1}, {0, -1}}) {
          const bool is_signed_type = dtype != DType::boolean && dtype != DType::u8;
          OpTester tester(op, 20);
          tester.input(random_of(dtype, dims, random, is_signed_type ? -20 : 0, dtype == DType::boolean ? 1 : 20));
          tester.constant(Tensor::from<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes)));
          const auto made = tester.lowered(Isa::avx2, 2);
          const std::string what = op + (" " + std::string(name_of(dtype)) + " " + to_string(dims));
          ASSERT_TRUE(made) << what;
          const std::vector<double> got = reals_of((*made)[0]), expected = reals_of(tester.result());
          ASSERT_EQ(got.size(), expected.size()) << what;
          for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-12) << what;
        }
      }
    }
  }
}

TEST(PlainReductions, LetNaNWin) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* op : {"ReduceMax", "ReduceMin"}) {
    for (const int64_t place : {0, 5, 39}) {
      Tensor x(DType::f64, {1, 40});
      x.mutable_data<double>()[place] = nan;
      OpTester tester(op, 20);
      tester.input(x).constant(Tensor::from<int64_t>({1}, {1}));
      EXPECT_TRUE(std::isnan((*tester.lowered(Isa::avx2, 1))[0].data<double>()[0])) << op << place;
    }
  }
}

TEST(PlainProducts, AgreeWithTheReferences) {
  std::mt19937 random(13);
  const struct {
    Dims a, b;
  } shapes[] = {{{5, 7}, {7, 33}}, {{4, 16}, {16, 8}}, {{3, 9, 5}, {5, 20}}, {{2, 1, 6, 4}, {3, 4, 17}}, {{7}, {7, 9}},
                {{8, 7}, {7}},     {{3, 0}, {0, 4}},   {{0, 3}, {3, 4}},     {{1, 100}, {100, 40}}};
  for (const DType dtype : {DType::f64, DType::i32, DType::i64, DType::u32, DType::u64}) {
    for (const auto& [a, b] : shapes) {
      OpTester tester("MatMul", 13);
      const int low = is_signed(dtype) ? -20 : 0;
      tester.input(random_of(dtype, a, random, low)).input(random_of(dtype, b, random, low));
      const auto made = tester.lowered(Isa::avx2, 2);
      ASSERT_TRUE(made);
      expect_same_bytes((*made)[0], tester.result(), std::string(name_of(dtype)) + " " + to_string(a));
    }
  }
}

TEST(PlainProducts, ScaleAndAddABias) {
  std::mt19937 random(14);
  for (const DType dtype : {DType::f64, DType::i32, DType::i64}) {
    for (const bool turns_a : {false, true}) {
      for (const bool turns_b : {false, true}) {
        for (const Dims& bias : {Dims{}, Dims{19}, Dims{6, 1}, Dims{6, 19}}) {
          OpTester tester("Gemm", 13);
          tester.input(random_of(dtype, turns_a ? Dims{11, 6} : Dims{6, 11}, random));
          tester.input(random_of(dtype, turns_b ? Dims{19, 11} : Dims{11, 19}, random));
          tester.input(random_of(dtype, bias, random)).with("alpha", 3.0F).with("beta", 2.0F);
          tester.with("transA", turns_a ? 1 : 0).with("transB", turns_b ? 1 : 0);
          const auto made = tester.lowered(Isa::avx2, 2);
          ASSERT_TRUE(made);
          expect_same_bytes((*made)[0], tester.result(), std::string(name_of(dtype)) + " " + to_string(bias));
        }
      }
    }
  }
}

TEST(ColumnsToImage, AddUpWhereBlocksOverlap) {
  std::mt19937 random(11);
  const struct {
    std::vector<int64_t> image, block, strides, pads, dilations;
  } cases[] = {{{7, 9}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
               {{8, 10}, {2, 3}, {2, 3}, {0, 1, 2, 0}, {2, 1}},
               {{12}, {4}, {3}, {0, 2}, {1}},
               {{4, 5, 6}, {2, 2, 3}, {1, 2, 2}, {0, 0, 1, 1, 0, 0}, {1, 1, 2}},
               {{3, 3}, {3, 3}, {1, 1}, {3, 3, 3, 3}, {1, 1}}};
  for (const auto& each : cases) {
    int64_t taps = 1, positions = 1;
    const size_t spatial = each.image.size();
    for (size_t i = 0; i < spatial; ++i) {
      taps *= each.block[i];
      const int64_t room =
          each.image[i] + each.pads[i] + each.pads[i + spatial] - each.dilations[i] * (each.block[i] - 1);
      positions *= (room - 1) / each.strides[i] + 1;
    }
    const auto longs = [](const std::vector<int64_t>& list) {
      return Tensor::from<int64_t>({static_cast<int64_t>(list.size())}, std::span<const int64_t>(list));
    };
    OpTester tester("Col2Im", 18);
    tester.input(testing::random_tensor({2, 3 * taps, positions}, random));
    tester.constant(longs(each.image)).constant(longs(each.block));
    tester.with("strides", each.strides).with("pads", each.pads).with("dilations", each.dilations);
    const auto made = tester.lowered(Isa::avx2, 3);
    ASSERT_TRUE(made);
    const Tensor expected = tester.result();
    ASSERT_EQ((*made)[0].dims(), expected.dims());
    for (int64_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR((*made)[0].data<float>()[i], expected.data<float>()[i], 3e-6F) << to_string(each.image);
  }
}

TEST(BytesOfThree, BecomePlanesAndPixels) {
  std::mt19937 random(12);
  for (const int64_t pixels : {1, 15, 16, 33, 4000}) {
    for (const bool is_split : {true, false}) {
      Tensor x(DType::u8, is_split ? Dims{2, pixels, 3} : Dims{2, 3, pixels});
      for (int64_t i = 0; i < x.size(); ++i) x.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(random());
      OpTester tester("Transpose", 13);
      tester.input(x).with("perm", std::vector<int64_t>{0, 2, 1});
      for (const int threads : {1, 2}) {
        const auto made = tester.lowered(Isa::avx2, threads);
        ASSERT_TRUE(made);
        expect_same_bytes((*made)[0], tester.result(), std::to_string(pixels));
      }
    }
  }
}

// Errors relative to the result, or absolute where it is below `floor`.
void expect_function(const char* op, double (*function)(double), float low, float high, double error, double floor) {
  Tensor x(DType::f32, {40001});
  for (int64_t i = 0; i < x.size(); ++i)
    x.mutable_data<float>()[i] = low + (high - low) * static_cast<float>(i) / static_cast<float>(x.size() - 1);
  for (const Isa isa : isas_here()) {
    OpTester tester(op);
    tester.input(x);
    const auto made = tester.lowered(isa, 1);
    ASSERT_TRUE(made) << op;
    for (int64_t i = 0; i < x.size(); ++i) {
      const double at = static_cast<double>(x.data<float>()[i]), expected = function(at);
      const double got = static_cast<double>((*made)[0].data<float>()[i]);
      ASSERT_NEAR(got, expected, error * std::max(std::abs(expected), floor)) << op << "(" << at << ")";
    }
  }
}

TEST(Trigonometry, IsOffByAFewUnitsOfTheLastPlace) {
  constexpr double kError = 5e-7;
  expect_function("Asin", std::asin, -1, 1, kError, 1e-30);
  expect_function("Acos", std::acos, -1, 1, kError, 1e-3);
  expect_function("Atan", std::atan, -30, 30, kError, 1e-30);
  expect_function("Atan", std::atan, -3e5F, 3e5F, kError, 1e-30);
  expect_function("Sinh", std::sinh, -3, 3, kError, 1e-30);
  expect_function("Sinh", std::sinh, -88, 88, 2e-6, 1e-30);
  expect_function("Cosh", std::cosh, -88, 88, 2e-6, 1e-30);
  expect_function("Asinh", std::asinh, -5, 5, kError, 1e-30);
  expect_function("Asinh", std::asinh, -1e20F, 1e20F, kError, 1e-30);
  expect_function("Acosh", std::acosh, 1, 4, kError, 1e-30);
  expect_function("Acosh", std::acosh, 1, 1e20F, kError, 1e-30);
  expect_function("Atanh", std::atanh, -0.99F, 0.99F, kError, 1e-30);
  expect_function("Tan", std::tan, -1.5F, 1.5F, kError, 1e-30);
  expect_function("Tan", std::tan, -200, 200, 4e-6, 1e-2);
}

TEST(Trigonometry, KeepsItsSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* op;
    double (*function)(double);
  } cases[] = {{"Asin", std::asin},   {"Acos", std::acos},   {"Atan", std::atan},
               {"Sinh", std::sinh},   {"Cosh", std::cosh},   {"Asinh", std::asinh},
               {"Acosh", std::acosh}, {"Atanh", std::atanh}, {"Tan", std::tan}};
  for (const auto& [op, function] : cases) {
    const Tensor x = Tensor::from<float>({8}, {0, 1, -1, 2, -2, inf, -inf, nan});
    for (const Isa isa : isas_here()) {
      OpTester tester(op);
      tester.input(x);
      const Tensor made = (*tester.lowered(isa, 1))[0];
      for (int64_t i = 0; i < x.size(); ++i) {
        const double expected = function(static_cast<double>(x.data<float>()[i]));
        const double got = static_cast<double>(made.data<float>()[i]);
        const std::string what = op + ("(" + std::to_string(x.data<float>()[i]) + ")");
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(got)) << what;
        } else if (std::isinf(expected)) {
          EXPECT_EQ(got, expected) << what;
        } else {
          EXPECT_NEAR(got, expected, 5e-7 * std::max(1e-3, std::abs(expected))) << what;
        }
      }
    }
  }
}

// Before opset 7 a slope of rank 1 belongs to axis 1; by NumPy's rule it would be the last one's.
TEST(RowLoops, KeepOldSlopesWithTheirChannels) {
  OpTester tester("PRelu", 6);
  tester.input(Tensor::from<float>({1, 2, 2}, {-1, -1, -1, -1})).input(Tensor::from<float>({2}, {2, 3}));
  const Tensor expected = Tensor::from<float>({1, 2, 2}, {-2, -2, -3, -3});
  expect_same_bytes(tester.result(), expected, "reference");
  const auto made = tester.lowered(Isa::avx2, 1);
  if (made) expect_same_bytes((*made)[0], expected, "lowering");
}

}  // namespace
}  // namespace lathe
