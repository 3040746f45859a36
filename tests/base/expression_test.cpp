#include "src/base/expression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <set>

namespace lathe {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

ExprNode in(int number) { return {.op = ExprOp::input, .a = number}; }
ExprNode number(float value) { return {.op = ExprOp::constant, .value = value}; }

Expression unary(ExprOp op) {
  Expression e{.nodes = {}, .inputs = {DType::f32}};
  e.add({.op = op, .a = e.add(in(0))});
  return e;
}

Expression binary(ExprOp op) {
  Expression e{.nodes = {}, .inputs = {DType::f32, DType::f32}};
  const int a = e.add(in(0)), b = e.add(in(1));
  e.add({.op = op, .a = a, .b = b});
  return e;
}

float value_of(const Expression& e, std::initializer_list<float> inputs) { return evaluate(e, inputs.begin()); }

TEST(Expression, MinAndMaxReturnNanWhenEitherOperandIsNan) {
  for (ExprOp op : {ExprOp::min, ExprOp::max}) {
    EXPECT_TRUE(std::isnan(value_of(binary(op), {kNan, 1})));
    EXPECT_TRUE(std::isnan(value_of(binary(op), {1, kNan})));
    EXPECT_TRUE(std::isnan(value_of(binary(op), {kInf, kNan})));
  }
  EXPECT_EQ(value_of(binary(ExprOp::min), {2, -kInf}), -kInf);
  EXPECT_EQ(value_of(binary(ExprOp::max), {2, 3}), 3);
}

TEST(Expression, NanComparesFalseAndCountsAsTrue) {
  for (ExprOp op : {ExprOp::equal, ExprOp::less, ExprOp::less_equal}) EXPECT_EQ(value_of(binary(op), {kNan, kNan}), 0);
  EXPECT_EQ(value_of(binary(ExprOp::logical_and), {kNan, 1}), 1);
  EXPECT_EQ(value_of(unary(ExprOp::logical_not), {kNan}), 0);
  EXPECT_EQ(value_of(unary(ExprOp::is_nan), {kNan}), 1);
  EXPECT_TRUE(std::isnan(value_of(unary(ExprOp::sign), {kNan})));
}

TEST(Expression, EvaluatesEveryUnaryOperation) {
  const std::pair<ExprOp, float> cases[] = {{ExprOp::neg, -2.5F},
                                            {ExprOp::abs, 2.5F},
                                            {ExprOp::sqrt, std::sqrt(2.5F)},
                                            {ExprOp::reciprocal, 0.4F},
                                            {ExprOp::exp, std::exp(2.5F)},
                                            {ExprOp::log, std::log(2.5F)},
                                            {ExprOp::erf, std::erf(2.5F)},
                                            {ExprOp::tanh, std::tanh(2.5F)},
                                            {ExprOp::sigmoid, 0.924141819979F},
                                            {ExprOp::floor, 2},
                                            {ExprOp::ceil, 3},
                                            {ExprOp::round_even, 2},
                                            {ExprOp::sin, std::sin(2.5F)},
                                            {ExprOp::cos, std::cos(2.5F)},
                                            {ExprOp::sign, 1},
                                            {ExprOp::logical_not, 0},
                                            {ExprOp::is_nan, 0}};
  for (const auto& [op, expected] : cases)
    EXPECT_FLOAT_EQ(value_of(unary(op), {2.5F}), expected) << to_string(unary(op));
  EXPECT_EQ(value_of(unary(ExprOp::round_even), {3.5F}), 4);
  EXPECT_EQ(value_of(unary(ExprOp::sign), {-0.5F}), -1);
}

TEST(Expression, SelectsByTruth) {
  Expression e{.nodes = {in(0), in(1), in(2)}, .inputs = {DType::boolean, DType::f32, DType::f32}};
  e.add({.op = ExprOp::select, .a = 0, .b = 1, .c = 2});
  EXPECT_EQ(value_of(e, {1, 5, 6}), 5);
  EXPECT_EQ(value_of(e, {0, 5, 6}), 6);
}

TEST(Expression, ClampsIntegerResultsAndMakesBoolsOneOrZero) {
  Expression e{.nodes = {in(0)}, .inputs = {DType::f32}, .output = DType::u8};
  EXPECT_EQ(value_of(e, {300}), 255);
  EXPECT_EQ(value_of(e, {-3}), 0);
  e.output = DType::i8;
  EXPECT_EQ(value_of(e, {-300}), -128);
  e.output = DType::i32;
  EXPECT_EQ(static_cast<int64_t>(value_of(e, {1e20F})), 2147483520);
  e.output = DType::boolean;
  EXPECT_EQ(value_of(e, {-0.25F}), 1);
}

TEST(ExpressionText, ReadsLikeAFormula) {
  Expression e{.nodes = {in(0), in(1)}, .inputs = {DType::f32, DType::f32}};
  const int sum = e.add({.op = ExprOp::add, .a = 0, .b = 1});
  const int zero = e.add(number(0));
  e.add({.op = ExprOp::max, .a = sum, .b = zero});
  EXPECT_EQ(to_string(e), "max(x0 + x1, 0)");
}

TEST(ExpressionText, ParenthesesShowTheTree) {
  Expression left{.nodes = {in(0), in(1), in(2)}, .inputs = std::vector<DType>(3, DType::f32)};
  Expression right = left;
  left.add({.op = ExprOp::sub, .a = left.add({.op = ExprOp::sub, .a = 0, .b = 1}), .b = 2});
  right.add({.op = ExprOp::sub, .a = 0, .b = right.add({.op = ExprOp::sub, .a = 1, .b = 2})});
  EXPECT_EQ(to_string(left), "(x0 - x1) - x2");
  EXPECT_EQ(to_string(right), "x0 - (x1 - x2)");
}

TEST(ExpressionText, WritesSharedNodesOnce) {
  Expression e{.nodes = {in(0)}, .inputs = {DType::f32}};
  const int one = e.add(number(1));
  int node = e.add({.op = ExprOp::add, .a = 0, .b = one});
  for (int i = 0; i < 40; ++i) node = e.add({.op = ExprOp::mul, .a = node, .b = node});
  const std::string text = to_string(e);
  EXPECT_EQ(text.substr(0, 30), "t0 = x0 + 1; t1 = t0 * t0; t2 ");
  EXPECT_LT(text.size(), 1000U);  // 2^40 leaves as a tree
}

TEST(ExpressionText, TellsTypesAndUnseenInputsApart) {
  Expression plain{.nodes = {in(0)}, .inputs = {DType::f32}};
  Expression half = plain, to_byte = plain, two_inputs = plain;
  half.inputs = {DType::f16};
  to_byte.output = DType::u8;
  two_inputs.inputs = {DType::f32, DType::f32};
  const std::set<std::string> texts = {to_string(plain), to_string(half), to_string(to_byte), to_string(two_inputs)};
  EXPECT_EQ(texts.size(), 4U);
  EXPECT_EQ(to_string(half), "x0 [float16 -> float32]");
}

TEST(ExpressionText, ConstantsRoundTrip) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isnan(value)) continue;
    const Expression e{.nodes = {number(value)}, .inputs = {}};
    EXPECT_EQ(std::strtof(to_string(e).c_str(), nullptr), value);
  }
  EXPECT_EQ(to_string(Expression{.nodes = {number(-0.0F)}, .inputs = {}}), "-0");
  EXPECT_EQ(to_string(Expression{.nodes = {number(-kNan)}, .inputs = {}}), "nan");
  EXPECT_EQ(to_string(Expression{.nodes = {number(-kInf)}, .inputs = {}}), "-inf");
}

TEST(Substitute, AppendsInnerInputsBehindTheOthers) {
  const Expression result = substitute(binary(ExprOp::sub), 0, binary(ExprOp::mul));
  EXPECT_EQ(to_string(result), "(x1 * x2) - x0");
  EXPECT_EQ(value_of(result, {1, 5, 7}), 34);
}

TEST(Substitute, AgreesWithEvaluatingOneAfterTheOther) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-3, 3);
  const ExprOp ops[] = {ExprOp::add, ExprOp::sub, ExprOp::mul, ExprOp::max, ExprOp::less};
  for (int i = 0; i < 200; ++i) {
    const Expression outer = binary(ops[random() % 5]), inner = binary(ops[random() % 5]);
    const int slot = static_cast<int>(random() % 2);
    const float other = uniform(random), a = uniform(random), b = uniform(random);
    const float inner_value = value_of(inner, {a, b});
    const float expected = slot == 0 ? value_of(outer, {inner_value, other}) : value_of(outer, {other, inner_value});
    EXPECT_EQ(value_of(substitute(outer, slot, inner), {other, a, b}), expected) << "case " << i;
  }
}

TEST(Substitute, KeepsWhatStoringTheInnerResultWouldDo) {
  Expression to_byte{.nodes = {in(0)}, .inputs = {DType::f32}, .output = DType::u8};
  Expression widen{.nodes = {in(0)}, .inputs = {DType::u8}};
  EXPECT_EQ(value_of(substitute(widen, 0, to_byte), {300}), 255);
  EXPECT_EQ(value_of(substitute(widen, 0, to_byte), {-1}), 0);
  to_byte.output = DType::boolean;
  EXPECT_EQ(value_of(substitute(widen, 0, to_byte), {-7}), 1);
}

TEST(ExtendInput, KeepsTheInputsPlaceAndAppendsTheOthers) {
  const Expression result = extend_input(binary(ExprOp::sub), 0, binary(ExprOp::mul));
  EXPECT_EQ(to_string(result), "(x0 * x2) - x1");
  EXPECT_EQ(value_of(result, {5, 1, 7}), 34);
  EXPECT_EQ(to_string(extend_input(binary(ExprOp::sub), 1, binary(ExprOp::mul))), "x0 - (x1 * x2)");
  EXPECT_EQ(extend_input({.nodes = {in(0)}, .inputs = {DType::f32}}, 0, binary(ExprOp::mul)), binary(ExprOp::mul));
}

TEST(Substitute, CountsFlop) {
  EXPECT_EQ(flop_per_element(unary(ExprOp::exp)), 10);
  EXPECT_EQ(flop_per_element(substitute(binary(ExprOp::add), 0, unary(ExprOp::neg))), 2);
}

}  // namespace
}  // namespace lathe
