// Expressions as vector code: agreement with the plain evaluation on each instruction set, for every exact operation
// and random expressions, and how many registers they take.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "tests/jit/epilogue_loop.h"

namespace lathe {
namespace {

using testing::binary;
using testing::EpilogueLoop;
using testing::isas_here;
using testing::kMaxInputs;
using testing::run;
using testing::unary;

bool same(float a, float b, float tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  if (a == b) return true;
  return std::fabs(a - b) <= tolerance * std::max(1.0F, std::fabs(b));
}

TEST(EpilogueEmitter, AgreesWithPlainEvaluationOnEveryExactOperation) {
  const float special[] = {0.0F, -0.0F, 1, -1, 2.5F, -2.5F, 3.5F, INFINITY, -INFINITY, NAN, 1e-40F, 1e30F};
  std::vector<float> x, y;
  for (const float a : special)
    for (const float b : special) x.push_back(a), y.push_back(b);
  for (const Isa isa : isas_here())
    for (int op = static_cast<int>(ExprOp::neg); op < static_cast<int>(ExprOp::select); ++op) {
      const auto kind = static_cast<ExprOp>(op);
      if (kind == ExprOp::exp || kind == ExprOp::log || kind == ExprOp::erf || kind == ExprOp::tanh ||
          kind == ExprOp::sigmoid || kind == ExprOp::sin || kind == ExprOp::cos || kind == ExprOp::pow)
        continue;
      const Expression expression = kind >= ExprOp::add ? binary(kind) : unary(kind);
      const std::vector<float> z = run(isa, expression, {x, y});
      for (size_t i = 0; i < x.size(); ++i) {
        const float in[] = {x[i], y[i]};
        EXPECT_TRUE(same(z[i], evaluate(expression, in), 0))
            << to_string(expression) << " of " << x[i] << ", " << y[i] << " is " << z[i] << " on " << name_of(isa);
      }
    }
}

Expression random_expression(std::mt19937& random) {
  Expression expression;
  const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const int inputs = 1 + pick(kMaxInputs);
  for (int i = 0; i < inputs; ++i) {
    expression.inputs.push_back(pick(4) == 0 ? DType::boolean : DType::f32);
    expression.add({.op = ExprOp::input, .a = i});
  }
  const ExprOp choices[] = {
      ExprOp::neg,         ExprOp::abs,        ExprOp::floor,  ExprOp::round_even, ExprOp::sign,  ExprOp::logical_not,
      ExprOp::is_nan,      ExprOp::add,        ExprOp::sub,    ExprOp::mul,        ExprOp::add,   ExprOp::sub,
      ExprOp::mul,         ExprOp::min,        ExprOp::max,    ExprOp::equal,      ExprOp::less,  ExprOp::less_equal,
      ExprOp::logical_and, ExprOp::logical_or, ExprOp::select, ExprOp::constant,   ExprOp::select};
  for (int i = 0, length = 1 + pick(14); i < length; ++i) {
    const int nodes = static_cast<int>(expression.nodes.size());
    ExprNode node{.op = choices[pick(std::size(choices))], .a = pick(nodes), .b = pick(nodes), .c = pick(nodes)};
    if (node.op == ExprOp::constant) node.value = static_cast<float>(pick(7)) - 3;
    expression.add(node);
  }
  const DType outputs[] = {DType::f32, DType::f32, DType::boolean, DType::f32};
  expression.output = outputs[pick(4)];
  return expression;
}

// Operands are small integers, so that no operation rounds and fused multiply-adds change nothing.
TEST(EpilogueEmitter, AgreesWithPlainEvaluationOnRandomExpressions) {
  std::mt19937 random(11);
  for (int round = 0; round < 1500; ++round) {
    const Expression expression = random_expression(random);
    std::vector<std::vector<float>> inputs(expression.inputs.size(), std::vector<float>(32));
    for (size_t k = 0; k < inputs.size(); ++k)
      for (float& value : inputs[k])
        value = static_cast<float>(random() % (expression.inputs[k] == DType::boolean ? 2 : 7)) -
                (expression.inputs[k] == DType::boolean ? 0 : 3);
    for (const Isa isa : isas_here()) {
      std::vector<float> got;
      try {
        got = run(isa, expression, inputs);
      } catch (const JitError&) {
        continue;  // more values live at once than AVX2 has registers
      }
      for (size_t i = 0; i < got.size(); ++i) {
        float in[kMaxInputs] = {};
        for (size_t k = 0; k < inputs.size(); ++k) in[k] = inputs[k][i];
        ASSERT_TRUE(same(got[i], evaluate(expression, in), 1e-6F))
            << to_string(expression) << " in round " << round << " on " << name_of(isa) << ": " << got[i]
            << " instead of " << evaluate(expression, in);
      }
    }
  }
}

TEST(EpilogueEmitter, ClampsWhatIsStoredAsIntegers) {
  const std::vector<float> x = {-3e9F, -200, -129, -128, -1, 0, 1, 127, 128, 255, 256, 3e9F, 5, 6, 7, 8};
  for (const DType type : {DType::u8, DType::i8, DType::i32})
    for (const Isa isa : isas_here()) {
      Expression expression = unary(ExprOp::neg);
      expression.output = type;
      const std::vector<float> y = run(isa, expression, {x});
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], evaluate(expression, &x[i]));
    }
}

// clamp(round(x0)) * factors[0] + x1 * factors[1] - factors[2] * x2, where x1 and x2 are bytes.
Expression sum_of_bytes(float low, float high, const std::array<float, 3>& factors) {
  Expression e{.inputs = {DType::f32, DType::u8, DType::i8}};
  const auto times = [&](int x, float value) {
    const int factor = e.add({.op = ExprOp::constant, .value = value});
    return e.add({.op = ExprOp::mul, .a = x, .b = factor});
  };
  const int rounded = e.add({.op = ExprOp::round_even, .a = e.add({.op = ExprOp::input, .a = 0})});
  const int least = e.add({.op = ExprOp::constant, .value = low}),
            most = e.add({.op = ExprOp::constant, .value = high});
  const int raised = e.add({.op = ExprOp::max, .a = rounded, .b = least});
  const int first = times(e.add({.op = ExprOp::min, .a = raised, .b = most}), factors[0]);
  const int second = times(e.add({.op = ExprOp::input, .a = 1}), factors[1]);
  const int sum = e.add({.op = ExprOp::add, .a = first, .b = second});
  const int third = times(e.add({.op = ExprOp::input, .a = 2}), factors[2]);
  e.add({.op = ExprOp::sub, .a = sum, .b = third});
  return e;
}

TEST(EpilogueEmitter, LooksUpProductsOfBytesWithConstants) {
  std::mt19937 random(7);
  std::vector<std::vector<float>> inputs(3);
  for (int i = -2048; i < 2048; ++i) {
    inputs[0].push_back(static_cast<float>(i) / 4);  // halves are among them, and what is out of range
    inputs[1].push_back(static_cast<float>(random() % 256));
    inputs[2].push_back(static_cast<float>(static_cast<int>(random() % 256) - 128));
  }
  inputs[0].back() = 3e9F;
  inputs[0].front() = -3e9F;
  struct Range {
    float low, high;
  };
  // The last two are no bytes: no whole numbers, and too many.
  const Range ranges[] = {{0, 255}, {-128, 127}, {-141, 114}, {-255, 0},      {-16, 239},
                          {-3, 3},  {17, 19},    {5, 5},      {-100, 100.5F}, {-128, 128}};
  const std::array<float, 3> exact = {0.5F, 0.75F, -0.25F}, others = {0.42105263F, 1.2946F, 0.01234567F};
  for (const Isa isa : isas_here()) {
    for (const Range& range : ranges) {
      for (const auto& factors : {exact, others}) {
        const Expression e = sum_of_bytes(range.low, range.high, factors);
        const std::vector<float> y = run(isa, e, inputs, BytesTimesConstants::looked_up);
        for (size_t i = 0; i < y.size(); ++i) {
          const double whole = std::clamp(std::nearbyint(inputs[0][i]), range.low, range.high);
          const double want =
              whole * factors[0] + double{inputs[1][i]} * factors[1] - double{inputs[2][i]} * factors[2];
          // Two roundings for each product and two sums, of numbers below 1,024.
          const double allowed = factors == exact ? 0 : 8 * std::ldexp(1024.0, -25);
          ASSERT_NEAR(y[i], want, allowed)
              << name_of(isa) << " " << range.low << " to " << range.high << " at " << inputs[0][i];
        }
      }
    }
    // Beside the accumulators of two tiles there is room for two.
    EXPECT_LE(EpilogueLoop(isa, sum_of_bytes(-141, 114, others), BytesTimesConstants::looked_up).temps_needed(), 2);
  }
}

Expression gelu() {
  Expression e{.inputs = {DType::f32}};
  const int x = e.add({.op = ExprOp::input, .a = 0});
  const int root = e.add({.op = ExprOp::constant, .value = 1.41421354F});
  const int scaled = e.add({.op = ExprOp::div, .a = x, .b = root});
  const int erf = e.add({.op = ExprOp::erf, .a = scaled});
  const int one = e.add({.op = ExprOp::constant, .value = 1});
  const int sum = e.add({.op = ExprOp::add, .a = erf, .b = one});
  const int product = e.add({.op = ExprOp::mul, .a = x, .b = sum});
  const int half = e.add({.op = ExprOp::constant, .value = 0.5F});
  e.add({.op = ExprOp::mul, .a = product, .b = half});
  return e;
}

TEST(EpilogueEmitter, NeedsFewRegistersForActivations) {
  Expression silu = unary(ExprOp::sigmoid);
  silu.add({.op = ExprOp::mul, .a = 0, .b = 1});
  for (const Isa isa : isas_here()) {
    EXPECT_LE(EpilogueLoop(isa, gelu()).temps_needed(), 4);
    EXPECT_LE(EpilogueLoop(isa, silu).temps_needed(), 4);
    EXPECT_LE(EpilogueLoop(isa, unary(ExprOp::tanh)).temps_needed(), 3);
  }
}

}  // namespace
}  // namespace lathe
