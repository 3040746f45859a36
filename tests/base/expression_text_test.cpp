#include "src/base/expression_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lathe {
namespace {

std::string again(const std::string& text) {
  TextReader reader(text);
  const Expression expression = read_expression(reader);
  return to_string(expression) + std::string(reader.rest());
}

TEST(ExpressionText, ComesBackAsItWasWritten) {
  for (const char* text : {"x0", "x0 + x1", "max(x0 * 0.5, -1e-05)", "t0 = x0 + 1; t0 * sigmoid(t0)",
                           "t0 = x0 + x1; t1 = tanh(t0); (t1 * t0) - select(x0 < 0, t1, -inf)",
                           "round_even(x0 / x1) [float32 uint8 -> int8]", "not(x0 == nan)", "tanh(x0) && is_nan(x1)"})
    EXPECT_EQ(again(text), text);
}

TEST(ExpressionText, RandomExpressionsKeepTheirText) {
  std::mt19937 random(3);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    Expression e;
    e.inputs.assign(3, DType::f32);
    for (int i = 0; i < 3; ++i) e.add({.op = ExprOp::input, .a = i});
    e.add({.op = ExprOp::constant, .value = static_cast<float>(pick(-1000, 1000)) / 7});
    for (int i = pick(1, 12); i > 0; --i) {
      const int last = static_cast<int>(e.nodes.size()) - 1;
      const auto op = static_cast<ExprOp>(pick(static_cast<int>(ExprOp::neg), static_cast<int>(ExprOp::select)));
      ExprNode node{.op = op, .a = pick(0, last)};
      if (op >= ExprOp::add) node.b = pick(0, last);
      if (op == ExprOp::select) node.c = pick(0, last);
      e.add(node);
    }
    const std::string text = to_string(e);
    EXPECT_EQ(again(text), text);
  }
}

TEST(ExpressionText, StopsBehindTheExpression) { EXPECT_EQ(again("x0 * x1:cf"), "x0 * x1:cf"); }

TEST(ExpressionText, RefusesWhatIsNone) {
  for (const char* text : {"", "+", "x", "x-1", "x9999999", "t0", "t3 + x0", "exp(x0", "exp(x0, x1)", "min(x0)",
                           "select(x0, x1)", "(x0", "x0 + ", "x0 [float32 ->", "x0 [string -> float32]"}) {
    TextReader reader(text);
    EXPECT_THROW(read_expression(reader), Error) << text;
  }
}

}  // namespace
}  // namespace lathe
