#include "src/base/expression_simplify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lathe {
namespace {

struct Builder {
  Expression e;
  explicit Builder(size_t inputs) { e.inputs.assign(inputs, DType::f32); }
  int input(int number) { return e.add({.op = ExprOp::input, .a = number}); }
  int constant(float value) { return e.add({.op = ExprOp::constant, .value = value}); }
  int op(ExprOp what, int a, int b = -1, int c = -1) { return e.add({.op = what, .a = a, .b = b, .c = c}); }
};

std::string text(const Builder& builder) { return to_string(simplified(builder.e)); }

TEST(SimplifiedExpression, MultipliesInsteadOfDividingByAConstant) {
  Builder b(1);
  b.op(ExprOp::div, b.input(0), b.constant(4));
  EXPECT_EQ(text(b), "x0 * 0.25");
}

TEST(SimplifiedExpression, KeepsDivisionsThatDecideOrOverflow) {
  Builder rounded(1);
  const int quotient = rounded.op(ExprOp::div, rounded.input(0), rounded.constant(3));
  rounded.op(ExprOp::round_even, quotient);
  EXPECT_EQ(simplified(rounded.e), rounded.e);
  for (const float divisor : {0.f, 1e-39f, INFINITY}) {
    Builder b(1);
    b.op(ExprOp::div, b.input(0), b.constant(divisor));
    EXPECT_EQ(simplified(b.e), b.e) << divisor;
  }
  Builder quantized(1);
  quantized.e.output = DType::u8;
  quantized.op(ExprOp::div, quantized.input(0), quantized.constant(3));
  EXPECT_EQ(simplified(quantized.e), quantized.e);
}

TEST(SimplifiedExpression, JoinsFactorsAndSummands) {
  Builder b(1);
  int x = b.op(ExprOp::mul, b.input(0), b.constant(2));
  x = b.op(ExprOp::mul, b.constant(3), x);
  x = b.op(ExprOp::add, x, b.constant(1));
  b.op(ExprOp::sub, x, b.constant(5));
  EXPECT_EQ(text(b), "(x0 * 6) + -4");
}

TEST(SimplifiedExpression, LeavesTheTrickThatRoundsByAddingALargeNumber) {
  Builder b(1);
  const int x = b.input(0), large = b.constant(12582912), up = b.op(ExprOp::add, x, large);
  const int down = b.constant(-12582912);
  b.op(ExprOp::add, up, down);
  EXPECT_EQ(simplified(b.e), b.e);
}

TEST(SimplifiedExpression, FoldsConstantsAndDropsWhatHasNoEffect) {
  Builder b(2);
  const int x = b.input(0);
  b.input(1);
  const int one = b.op(ExprOp::mul, b.constant(0.5f), b.constant(2));
  b.op(ExprOp::exp, x);  // nobody reads it
  int y = b.op(ExprOp::mul, x, one);
  y = b.op(ExprOp::add, y, b.constant(0));
  y = b.op(ExprOp::neg, b.op(ExprOp::neg, y));
  b.op(ExprOp::sqrt, y);
  const Expression after = simplified(b.e);
  EXPECT_EQ(to_string(after).substr(0, 8), "sqrt(x0)");
  EXPECT_EQ(after.inputs.size(), 2u);
}

TEST(SimplifiedExpression, ComputesCommonPartsOnceAndPowersAsProducts) {
  Builder b(1);
  const int x = b.input(0);
  const int first = b.op(ExprOp::exp, x), second = b.op(ExprOp::exp, x);
  b.op(ExprOp::pow, b.op(ExprOp::sub, first, second), b.constant(2));
  const Expression after = simplified(b.e);
  int exponentials = 0;
  for (const ExprNode& node : after.nodes) exponentials += node.op == ExprOp::exp;
  EXPECT_EQ(exponentials, 1);
  for (const ExprNode& node : after.nodes) EXPECT_NE(node.op, ExprOp::pow);
}

TEST(SimplifiedExpression, GivesItsInputWhenNothingIsLeft) {
  Builder b(1);
  b.op(ExprOp::mul, b.input(0), b.constant(1));
  const Expression after = simplified(b.e);
  const float x = 2.5f;
  EXPECT_EQ(evaluate(after, &x), 2.5f);
}

// Any expression over numbers of moderate size means the same before and after.
TEST(SimplifiedExpression, KeepsTheMeaningOfRandomExpressions) {
  static constexpr ExprOp kOps[] = {ExprOp::add, ExprOp::mul, ExprOp::sub,  ExprOp::div,  ExprOp::max,    ExprOp::min,
                                    ExprOp::neg, ExprOp::abs, ExprOp::tanh, ExprOp::sqrt, ExprOp::select, ExprOp::pow};
  std::mt19937 random(20240801);
  const float constants[] = {0, 1, 2, 3, 0.5f, -1, 4, 10};
  for (int round = 0; round < 3000; ++round) {
    Builder b(2);
    b.input(0);
    b.input(1);
    for (int i = 0; i < 10; ++i) {
      const auto any = [&] { return static_cast<int>(random() % b.e.nodes.size()); };
      const ExprOp op = kOps[random() % std::size(kOps)];
      if (random() % 3 == 0) {
        b.constant(constants[random() % std::size(constants)]);
      } else if (op == ExprOp::select) {
        b.op(op, any(), any(), any());
      } else if (op >= ExprOp::add) {
        b.op(op, any(), any());
      } else {
        b.op(op, any());
      }
    }
    if (b.e.nodes.back().op == ExprOp::constant) continue;
    const Expression after = simplified(b.e);
    EXPECT_LE(after.nodes.size(), b.e.nodes.size() + 2);
    const float inputs[] = {1.25f, -0.75f};
    const float want = evaluate(b.e, inputs), got = evaluate(after, inputs);
    if (std::isfinite(want) && std::abs(want) < 1e4f) {
      EXPECT_NEAR(got, want, 1e-3f * std::max(1.f, std::abs(want))) << to_string(b.e) << " became " << to_string(after);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lathe
