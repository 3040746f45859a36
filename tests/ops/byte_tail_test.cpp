// Expressions that go through one byte, against the same expression evaluated as a whole.
#include <gtest/gtest.h>

#include <random>

#include "ops/int8/int8_table.h"

namespace lathe {
namespace {

struct Maker {
  Expression e;
  int constant(float value) { return e.add({.op = ExprOp::constant, .value = value}); }
  int input(int slot) { return e.add({.op = ExprOp::input, .a = slot}); }
  // clamp(round(x / scale) + zero) in the range of bytes
  int quantized(int x, float scale, float zero, bool is_signed) {
    const int rounded = e.add({ExprOp::round_even, e.add({ExprOp::div, x, constant(scale)})});
    const int moved = e.add({ExprOp::add, rounded, constant(zero)});
    const int low = e.add({ExprOp::max, moved, constant(is_signed ? -128.0F : 0.0F)});
    return e.add({ExprOp::min, low, constant(is_signed ? 127.0F : 255.0F)});
  }
  int real(int byte, float scale, float zero) {
    return e.add({ExprOp::mul, e.add({ExprOp::sub, byte, constant(zero)}), constant(scale)});
  }
  int silu(int x) { return e.add({ExprOp::mul, x, e.add({ExprOp::sigmoid, x})}); }
};

TEST(ByteTail, IsWhatTheWholeExpressionGives) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> any(-30, 30);
  for (const bool is_signed : {false, true}) {
    for (const DType output : {DType::u8, DType::i8}) {
      Maker maker;
      maker.e.inputs = {DType::f32, DType::f32};
      maker.e.output = output;
      const int sum = maker.e.add({ExprOp::add, maker.input(0), maker.input(1)});
      const float zero = is_signed ? -20 : 100;
      const int x = maker.real(maker.quantized(sum, 0.1F, zero, is_signed), 0.1F, zero);
      maker.quantized(maker.silu(x), 0.07F, 9, output == DType::i8);
      const auto tail = byte_tail(maker.e);
      ASSERT_TRUE(tail);
      ASSERT_EQ(tail->table.size(), 256U);
      EXPECT_EQ(tail->head.output, is_signed ? DType::i8 : DType::u8);
      EXPECT_LT(tail->head.nodes.size(), maker.e.nodes.size());
      for (int i = 0; i < 1000; ++i) {
        const float inputs[] = {any(random), any(random)};
        const auto bits = static_cast<uint8_t>(static_cast<int>(evaluate(tail->head, inputs)));
        const auto wanted = static_cast<uint8_t>(static_cast<int>(evaluate(maker.e, inputs)));
        ASSERT_EQ(tail->table[bits], wanted) << inputs[0] << " " << inputs[1];
      }
    }
  }
}

TEST(ByteTail, IsNotThereWhereAnotherInputFollowsOrOnlyOneClampOrLittleWork) {
  for (const int with : {0, 1, 2, 3, 4}) {
    Maker maker;
    maker.e.inputs = {DType::f32, DType::f32};
    maker.e.output = DType::u8;
    const int sum = maker.input(0);
    int x = maker.real(maker.quantized(sum, 0.1F, 3, false), 0.1F, 3);
    if (with == 1) x = maker.e.add({ExprOp::add, x, maker.input(1)});
    if (with == 2) x = maker.e.add({ExprOp::mul, x, sum});
    if (with == 3) x = maker.e.add({ExprOp::max, maker.e.add({ExprOp::round_even, sum}), maker.constant(0)});
    if (with != 4) maker.quantized(maker.silu(x), 0.07F, 9, false);
    if (with == 4) maker.e.nodes.resize(static_cast<size_t>(x) - 3);  // the byte as it is
    SCOPED_TRACE(with);
    EXPECT_EQ(byte_tail(maker.e).has_value(), with == 0);
    maker.e.output = DType::f32;
    EXPECT_FALSE(byte_tail(maker.e));
  }
}

}  // namespace
}  // namespace lathe
