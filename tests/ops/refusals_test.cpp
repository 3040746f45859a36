// What operators must refuse: operands and attributes that mean nothing.
#include <gtest/gtest.h>

#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

TEST(Division, RefusesAnIntegerDivisorOfZero) {
  for (const char* op : {"Div", "Mod"}) {
    EXPECT_THROW(OpTester(op, 14).input(longs({5, 6})).input(longs({1, 0})).result(), Error) << op;
    EXPECT_EQ(OpTester(op, 14).input(longs({})).input(longs({0})).result().size(), 0) << op;
  }
  const float quotient = OpTester("Div", 14).input(floats({1})).input(floats({0})).result().data<float>()[0];
  EXPECT_EQ(quotient, std::numeric_limits<float>::infinity());
}

TEST(PRelu, RefusesASlopeThatDoesNotBroadcast) {
  const Tensor x(DType::f32, {1, 4, 2, 2});
  EXPECT_NO_THROW(OpTester("PRelu", 16).input(x).input(Tensor(DType::f32, {4, 1, 1})).result());
  EXPECT_NO_THROW(OpTester("PRelu", 6).input(x).input(Tensor(DType::f32, {4})).result());
  EXPECT_THROW(OpTester("PRelu", 16).input(x).input(floats({1, 2, 3})).result(), Error);
  EXPECT_THROW(OpTester("PRelu", 16).input(floats({1})).input(floats({1, 2})).result(), Error);
}

TEST(SkipLayerNormalization, RefusesASkipOfAnotherType) {
  const auto normalize = [](DType skip) {
    microsoft("SkipLayerNormalization")
        .input(Tensor(DType::f32, {1, 2, 4}))
        .input(Tensor(skip, {1, 2, 4}))
        .input(Tensor(DType::f32, {4}))
        .result();
  };
  EXPECT_NO_THROW(normalize(DType::f32));
  EXPECT_THROW(normalize(DType::f64), Error);
}

TEST(Pooling, RefusesWindowsThatAreEmptyOrLieInThePadding) {
  const auto pool = [](const char* op, std::vector<int64_t> kernel, std::vector<int64_t> pads) {
    OpTester(op, 12)
        .with("kernel_shape", std::move(kernel))
        .with("pads", std::move(pads))
        .input(Tensor(DType::f32, {1, 1, 4, 4}))
        .result();
  };
  for (const char* op : {"MaxPool", "AveragePool"}) {
    EXPECT_NO_THROW(pool(op, {2, 2}, {1, 1, 1, 1}));
    EXPECT_THROW(pool(op, {2, 2}, {2, 0, 0, 0}), Error);
    EXPECT_THROW(pool(op, {2, 2}, {0, 0, 0, 9}), Error);
    EXPECT_THROW(pool(op, {}, {0, 0, 0, 0}), Error);
  }
}

TEST(ConstantOfShape, SaysWhichNodeMakesMoreThanCanBeCounted) {
  for (const int64_t extent : {int64_t{1} << 31, int64_t{1} << 40}) {
    try {
      OpTester("ConstantOfShape", 9).input(longs({extent, extent})).result();
      ADD_FAILURE() << extent;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind("node 'tested'", 0), 0U) << error.what();
    }
  }
}

TEST(Reshape, RefusesToDivideByAnExtentOfZero) {
  OpTester open("Reshape", 14), given("Reshape", 14);
  const Tensor nothing(DType::f32, {0, 2});
  EXPECT_THROW(open.with("allowzero", 1).input(nothing).input(longs({0, -1})).result(), Error);
  EXPECT_EQ(given.with("allowzero", 1).input(nothing).input(longs({3, 0})).result().dims(), (Dims{3, 0}));
}

TEST(Cast, StoresNanAsMinusZeroWhereThereIsNone) {
  const Tensor result = OpTester("Cast", 23)
                            .with("to", static_cast<int64_t>(DType::f4e2m1))
                            .input(floats({std::numeric_limits<float>::quiet_NaN(), 9}))
                            .result();
  EXPECT_EQ(result.elements<uint8_t>()[0], 0x78);  // lowest bits first
}

}  // namespace
}  // namespace lathe::testing
