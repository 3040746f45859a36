// Operators whose lowering is a plain loop (ops/pointwise/row_loops.h, copies), against their references: the same
// bits, over random shapes with tails.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/ops/equal_bits.h"

namespace lathe {
namespace {

using testing::expect_equal_bits;
using testing::isas_here;
using testing::longs;
using testing::numbers;
using testing::OpTester;
using testing::random_dims;

// Extents of two operands that broadcast to `dims`.
std::pair<Dims, Dims> broadcasting(const Dims& dims, std::mt19937& random) {
  Dims a = dims, b = dims;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (random() % 4 == 0) a[i] = 1;
    if (random() % 4 == 0) b[i] = 1;
  }
  if (random() % 3 == 0) b.erase(b.begin(), b.begin() + static_cast<ptrdiff_t>(random() % (b.size() + 1)));
  return {a, b};
}

TEST(RowLoops, ComputeWhatExpressionsDoNot) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::i64, DType::i32, DType::f64}) {
    for (const char* op : {"Add", "Sub", "Mul", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"}) {
      for (int i = 0; i < 6; ++i) {
        const auto [a, b] = broadcasting(random_dims(random, 1 + random() % 4, 23), random);
        SCOPED_TRACE(std::string(op) + " of " + std::string(name_of(dtype)) + " " + to_string(a) + " " + to_string(b));
        OpTester tester(op);
        tester.input(numbers(dtype, a, random)).input(numbers(dtype, b, random));
        expect_equal_bits(tester);
      }
    }
  }
}

TEST(RowLoops, SplitLongRows) {
  std::mt19937 random(2);
  OpTester tester("Add");
  tester.input(numbers(DType::i64, {100003}, random)).input(numbers(DType::i64, {1}, random));
  expect_equal_bits(tester);
}

TEST(RowLoops, DivideByWhatIsNotZero) {
  std::mt19937 random(3);
  for (const char* op : {"Div", "Mod"}) {
    for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
      Tensor divisors = numbers(dtype, {7, 1}, random);
      for (int64_t i = 0; i < divisors.size(); ++i) store_real(divisors, i, static_cast<double>(1 + i % 5));
      if (is_signed(dtype)) store_real(divisors, 3, -1);
      OpTester tester(op);
      tester.input(numbers(dtype, {3, 7, 19}, random)).constant(divisors);
      expect_equal_bits(tester);
    }
  }
}

TEST(RowLoops, LeaveZeroDivisorsToTheReference) {
  std::mt19937 random(4);
  OpTester tester("Div");
  tester.input(numbers(DType::i64, {4}, random)).constant(longs({1, 2, 0, 4}));
  EXPECT_THROW(tester.reference(), Error);
  EXPECT_FALSE(tester.lowered(Isa::avx2, 1).has_value());
}

TEST(RowLoops, TakeRemaindersOfFloats) {
  std::mt19937 random(5);
  {
    constexpr int is_fmod = 1;
    Tensor a(DType::f32, {10000}), b(DType::f32, {10000});
    for (int64_t i = 0; i < a.size(); ++i) {
      a.mutable_data<float>()[i] =
          std::ldexp(static_cast<float>(random()) * 0x1p-32f - 0.5f, static_cast<int>(random() % 60));
      b.mutable_data<float>()[i] =
          std::ldexp(static_cast<float>(random()) * 0x1p-32f - 0.5f, static_cast<int>(random() % 60));
    }
    a.mutable_data<float>()[0] = b.mutable_data<float>()[1] = std::numeric_limits<float>::infinity();
    a.mutable_data<float>()[2] = -0.0f;
    OpTester tester("Mod");
    tester.input(a).input(b).with("fmod", is_fmod);
    const Tensor result = (*tester.lowered(Isa::avx2, 1))[0];
    ASSERT_TRUE(std::isnan(result.data<float>()[0]));  // of infinity
    for (int64_t i = 1; i < a.size(); ++i) {
      ASSERT_EQ(result.data<float>()[i], std::fmod(a.data<float>()[i], b.data<float>()[i]))
          << a.data<float>()[i] << " by " << b.data<float>()[i];
    }
  }
}

TEST(RowLoops, ChooseElementsOfAnyWidth) {
  std::mt19937 random(6);
  for (const DType dtype : {DType::i64, DType::i32, DType::f16, DType::u8, DType::f64}) {
    for (int i = 0; i < 8; ++i) {
      const Dims dims = random_dims(random, 3, 20);
      const auto [a, b] = broadcasting(dims, random);
      OpTester tester("Where");
      tester.input(numbers(DType::boolean, dims, random))
          .input(numbers(dtype, a, random))
          .input(numbers(dtype, b, random));
      expect_equal_bits(tester);
    }
  }
}

TEST(RowLoops, CombineBools) {
  std::mt19937 random(7);
  for (const char* op : {"And", "Or", "Xor"}) {
    for (int i = 0; i < 6; ++i) {
      const auto [a, b] = broadcasting(random_dims(random, 3, 30), random);
      OpTester tester(op);
      tester.input(numbers(DType::boolean, a, random)).input(numbers(DType::boolean, b, random));
      expect_equal_bits(tester);
    }
  }
  OpTester tester("Not");
  tester.input(numbers(DType::boolean, {7, 61}, random));
  expect_equal_bits(tester);
}

TEST(RowLoops, ConvertBetweenTypes) {
  std::mt19937 random(8);
  const DType types[] = {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::boolean};
  for (const DType from : types) {
    for (const DType to : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::boolean}) {
      if (from == to) continue;
      SCOPED_TRACE(std::string(name_of(from)) + " to " + std::string(name_of(to)));
      OpTester tester("Cast");
      // Negative numbers as bytes have no meaning of their own.
      Tensor x = numbers(from, {3, 67}, random);
      for (int64_t i = 0; to == DType::u8 && i < x.size(); ++i) store_real(x, i, static_cast<double>(i % 250));
      tester.input(x).with("to", static_cast<int64_t>(to));
      expect_equal_bits(tester);
    }
  }
}

TEST(RowLoops, HoldFloatsToTheRangeOfIntegers) {
  for (const DType to : {DType::i64, DType::i32}) {
    OpTester tester("Cast");
    tester
        .input(testing::tensor<double>(
            {11}, {NAN, 9.3e18, -9.3e18, INFINITY, -INFINITY, 2.9, -2.9, 9.2e18, -9.2e18, 0.0, -0.0}))
        .with("to", static_cast<int64_t>(to));
    expect_equal_bits(tester);
  }
}

TEST(RowLoops, NarrowToSixteenBits) {
  std::mt19937 random(9);
  for (const DType to : {DType::f16, DType::bf16}) {
    Tensor x(DType::f32, {5003});
    for (int64_t i = 0; i < x.size(); ++i) {
      uint32_t bits = static_cast<uint32_t>(random());
      if (i % 2 == 0) bits = (bits & 0x8fffffffu) | 0x30000000u;  // near what float16 can hold
      float value = std::bit_cast<float>(bits);
      if (std::isnan(value)) value = INFINITY;
      x.mutable_data<float>()[i] = value;
    }
    OpTester tester("Cast");
    tester.input(x).with("to", static_cast<int64_t>(to));
    expect_equal_bits(tester);
  }
}

// In float32 between load and store: one unit in the last place of float16 from the reference, for transcendentals.
TEST(Float16, IsComputedByGeneratedCode) {
  std::mt19937 random(24);
  const auto expect_near = [](OpTester& tester) {
    const Tensor expected = tester.result();
    for (const Isa isa : isas_here()) {
      const auto results = tester.lowered(isa, 2);
      ASSERT_TRUE(results.has_value()) << "the reference ran";
      const std::vector<double> got = reals_of((*results)[0]), wanted = reals_of(expected);
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(got[i], wanted[i], std::abs(wanted[i]) * 0x1p-10 + 1e-7) << "element " << i << " " << name_of(isa);
      }
    }
  };
  const auto halves = [&](const Dims& dims) {
    Tensor tensor(DType::f16, dims);
    for (int64_t i = 0; i < tensor.size(); ++i)
      store_real(tensor, i, static_cast<double>(random() % 1000) / 250 - 1.99);
    return tensor;
  };
  for (const char* op : {"Sigmoid", "Tanh", "Erf", "Relu", "Neg", "HardSwish", "Gelu", "Exp"}) {
    SCOPED_TRACE(op);
    OpTester tester(op);
    expect_near(tester.input(halves({3, 5, 47})));
  }
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max"}) {
    SCOPED_TRACE(op);
    OpTester same(op), broadcast(op), scalar(op);
    expect_near(same.input(halves({3, 67})).input(halves({3, 67})));
    expect_near(broadcast.input(halves({3, 67})).input(halves({3, 1})));
    expect_near(scalar.input(halves({3, 67})).constant(halves({1})));
  }
  Tensor low(DType::f16, {}), high(DType::f16, {});
  store_real(high, 0, 1);
  OpTester clip("Clip"), less("Less"), cast("Cast");
  expect_near(clip.input(halves({3, 67})).constant(low).constant(high));
  expect_near(less.input(halves({3, 67})).input(halves({67})));
  expect_near(cast.input(halves({3, 67})).with("to", static_cast<int64_t>(DType::f32)));
}

TEST(IntegerReduction, JoinsAnyAxes) {
  std::mt19937 random(25);
  for (const char* op : {"ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"}) {
    for (const DType dtype : {DType::i64, DType::i32}) {
      for (const auto& axes : {std::vector<int64_t>{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}}) {
        OpTester tester(op, 18);
        Tensor list = Tensor::from<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes));
        Tensor x = numbers(dtype, {3, 5, 19}, random);
        for (int64_t i = 0; i < x.size() && op == std::string("ReduceProd"); ++i) store_real(x, i, i % 7 == 0 ? -2 : 1);
        tester.input(x).constant(list).with("keepdims", static_cast<int64_t>(random() % 2));
        SCOPED_TRACE(op);
        expect_equal_bits(tester);
      }
    }
  }
}

TEST(Triangles, KeepOneSide) {
  std::mt19937 random(19);
  for (int64_t k = -12; k <= 12; k += 3) {
    for (const int upper : {0, 1}) {
      OpTester tester("Trilu");
      tester.input(numbers(k % 2 == 0 ? DType::f32 : DType::boolean, {3, 7, 9}, random))
          .constant(Tensor::scalar<int64_t>(k))
          .with("upper", upper);
      expect_equal_bits(tester);
    }
  }
}

TEST(Transpose, TurnsElementsOfAnyWidth) {
  std::mt19937 random(26);
  for (const DType dtype : {DType::u8, DType::f16, DType::i64}) {
    for (const Dims& dims : {Dims{2, 37, 51}, Dims{1, 64, 48}, Dims{3, 16, 3}}) {
      OpTester tester("Transpose");
      tester.input(numbers(dtype, dims, random)).with("perm", std::vector<int64_t>{0, 2, 1});
      expect_equal_bits(tester);
    }
  }
}

TEST(DepthAndSpace, MoveInBothOrders) {
  std::mt19937 random(20);
  for (const int block : {1, 2, 3, 4}) {
    for (const char* mode : {"DCR", "CRD"}) {
      OpTester deep("DepthToSpace");
      deep.input(numbers(DType::f32, {2, 3L * block * block, 5, 7}, random))
          .with("blocksize", block)
          .with("mode", mode);
      expect_equal_bits(deep);
    }
    OpTester wide("SpaceToDepth", 13);
    wide.input(numbers(DType::f32, {2, 3, 5L * block, 7L * block}, random)).with("blocksize", block);
    expect_equal_bits(wide);
  }
}

TEST(ReverseSequence, TurnsTheBeginOfEachLine) {
  std::mt19937 random(21);
  for (const int time : {0, 1}) {
    OpTester tester("ReverseSequence");
    tester.input(numbers(DType::f32, {4, 4, 3}, random))
        .input(longs({1, 4, 0, 3}))
        .with("time_axis", time)
        .with("batch_axis", 1 - time);
    expect_equal_bits(tester);
  }
}

TEST(Quantization, TakesAScaleForEachIndexOfAnAxis) {
  std::mt19937 random(22);
  for (int64_t axis = 0; axis < 3; ++axis) {
    const Dims dims{5, 7, 19};
    Tensor scale(DType::f32, {dims[static_cast<size_t>(axis)]});
    for (int64_t i = 0; i < scale.size(); ++i) scale.mutable_data<float>()[i] = 0.25f * static_cast<float>(1 + i);
    const Tensor zero = numbers(DType::i8, scale.dims(), random);
    OpTester quantize("QuantizeLinear"), dequantize("DequantizeLinear");
    quantize.input(numbers(DType::f32, dims, random)).constant(scale).constant(zero).with("axis", axis);
    dequantize.input(numbers(DType::i8, dims, random)).constant(scale).constant(zero).with("axis", axis);
    expect_equal_bits(quantize);
    expect_equal_bits(dequantize);
  }
}

TEST(Quantization, TakesAScaleForEachBlockOfAnAxis) {
  std::mt19937 random(24);
  for (int64_t axis = 0; axis < 3; ++axis) {
    for (const int64_t block : {1, 2, 6}) {
      const Dims dims{6, 12, 18};
      Dims blocks = dims;
      blocks[static_cast<size_t>(axis)] /= block;
      Tensor scale(DType::f32, blocks);
      for (int64_t i = 0; i < scale.size(); ++i)
        scale.mutable_data<float>()[i] = 0.25f * static_cast<float>(1 + i % 11);
      const Tensor zero = numbers(DType::i8, blocks, random);
      OpTester quantize("QuantizeLinear", 21), dequantize("DequantizeLinear", 21);
      quantize.input(numbers(DType::f32, dims, random)).constant(scale).input(zero);
      dequantize.input(numbers(DType::i8, dims, random)).input(scale).constant(zero);
      expect_equal_bits(quantize.with("axis", axis - 3).with("block_size", block));
      expect_equal_bits(dequantize.with("axis", axis).with("block_size", axis == 0 ? 0 : block));
    }
  }
}

TEST(Quantization, HasLoopsForSixteenBits) {
  std::mt19937 random(23);
  for (const DType dtype : {DType::u16, DType::i16}) {
    for (const Dims& dims : {Dims{3, 37}, Dims{0, 4}}) {
      const Tensor scale = Tensor::scalar(0.03125F), zero = numbers(dtype, {}, random);
      OpTester quantize("QuantizeLinear", 21), dequantize("DequantizeLinear", 21);
      quantize.input(numbers(DType::f32, dims, random)).constant(scale).constant(zero);
      dequantize.input(numbers(dtype, dims, random)).constant(scale).constant(zero);
      expect_equal_bits(quantize);
      expect_equal_bits(dequantize);
    }
    // Beyond either end.
    OpTester saturate("QuantizeLinear", 21);
    saturate.input(Tensor::from<float>({3}, {-1e6F, 1e6F, 12.5F})).constant(Tensor::scalar(0.5F));
    saturate.constant(numbers(dtype, {}, random));
    expect_equal_bits(saturate);
  }
}

}  // namespace
}  // namespace lathe
