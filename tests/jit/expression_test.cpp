// Expressions as vector code: accuracy against double-precision libm over a dense sweep of all float32 numbers, and
// agreement with the plain evaluation on random expressions, on each instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "jit/emitter.h"
#include "jit/expression/epilogue.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::isas_here;

constexpr int kMaxInputs = 4;
using Loop = void(const float* const* inputs, float* out, int64_t vectors);

// out[i] = expression(inputs[0][i], inputs[1][i], ...), by EpilogueEmitter on one accumulator.
class EpilogueLoop : public Emitter {
 public:
  EpilogueLoop(Isa target, const Expression& expression, BytesTimesConstants products = BytesTimesConstants::multiplied)
      : Emitter(target), epilogue_(*this, target, expression, products) {
    emit(static_cast<int>(expression.inputs.size()));
  }
  int temps_needed() const { return epilogue_.temps_needed(); }

 private:
  void emit(int inputs) {
    const Gpr table = argument(0), out = argument(1), left = argument(2);
    const Gpr offset = claim_gpr("offset"), row = claim_gpr("row");
    const Vec accumulator = claim_vec("accumulator");
    const std::vector<Vec> temps = claim_vecs("temps", epilogue_.temps_needed());
    begin();
    xor_(offset, offset);
    const auto load_input = [&](int slot, const Vec& into) {
      mov(row, ptr[table + slot * 8]);
      load(into, row + offset);
      if (epilogue_.takes_bytes(slot)) vcvtps2dq(into, into);
    };
    loop_down(left, [&] {
      if (inputs > 0) load_input(0, accumulator);
      epilogue_.apply(accumulator, temps, load_input);
      store(out + offset, accumulator);
      add(offset, vec_bytes());
    });
    end();
    epilogue_.emit_constants();
  }

  EpilogueEmitter epilogue_;
};

std::vector<float> run(Isa isa, const Expression& expression, const std::vector<std::vector<float>>& inputs,
                       BytesTimesConstants products = BytesTimesConstants::multiplied) {
  const Kernel<Loop> kernel(EpilogueLoop(isa, expression, products).finish("test"));
  const size_t count = inputs[0].size();
  EXPECT_EQ(count % 16, 0U);
  const float* table[kMaxInputs] = {};
  for (size_t i = 0; i < inputs.size(); ++i) table[i] = inputs[i].data();
  std::vector<float> out(count);
  kernel(static_cast<const float* const*>(table), out.data(), static_cast<int64_t>(count) / vector_lanes(isa));
  return out;
}

Expression unary(ExprOp op) {
  Expression expression{.inputs = {DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = op, .a = 0});
  return expression;
}

Expression binary(ExprOp op) {
  Expression expression{.inputs = {DType::f32, DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = ExprOp::input, .a = 1});
  expression.add({.op = op, .a = 0, .b = 1});
  return expression;
}

// Every `step`-th float32 bit pattern: zeros, denormals, infinities and NaNs are among them.
std::vector<float> all_floats(uint32_t step) {
  std::vector<float> floats = {0.0F, -0.0F,     1.0F,       -1.0F,    INFINITY, -INFINITY,
                               NAN,  88.72284F, -87.33655F, -103.97F, -104.5F};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step)
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  while (floats.size() % 16 != 0) floats.push_back(0);
  return floats;
}

// Distance in units of the last place of float32 at the exact value; 0 when both are the same inf or NaN.
double ulps(float got, double exact) {
  const auto nearest = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(got) ? 0 : INFINITY;
  if (std::isinf(nearest) || std::isinf(got)) return got == nearest ? 0 : (std::fabs(exact) > 3.4028e38 ? 1 : INFINITY);
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

struct AccuracyCase {
  ExprOp op;
  double (*exact)(double);
  double max_ulps, max_absolute;  // either is good enough
  float largest = INFINITY;       // arguments beyond are not judged
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(VectorMath, KeepsItsStatedErrorsOverAllFloats) {
  const AccuracyCase cases[] = {
      {ExprOp::exp, std::exp, 1, 0},
      {ExprOp::log, std::log, 1, 0},
      {ExprOp::erf, std::erf, 6, 0},
      {ExprOp::tanh, std::tanh, 5, 0},
      {ExprOp::sigmoid, sigmoid, 3, 1.2e-38},
      {ExprOp::sin, std::sin, 0, std::ldexp(1.0, -23), 1e5F},
      {ExprOp::cos, std::cos, 0, std::ldexp(1.0, -23), 1e5F},
  };
  const std::vector<float> x = all_floats(2003);
  for (const Isa isa : isas_here())
    for (const AccuracyCase& c : cases) {
      const std::vector<float> y = run(isa, unary(c.op), {x});
      double worst = 0, worst_absolute = 0, worst_at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isfinite(x[i]) && std::fabs(x[i]) > c.largest) continue;
        const double exact = c.exact(x[i]), error = ulps(y[i], exact);
        const double absolute = std::fabs(y[i] - exact);
        if (absolute <= c.max_absolute) {
          worst_absolute = std::max(worst_absolute, absolute);
        } else if (error > worst) {
          worst = error;
          worst_at = x[i];
        }
      }
      RecordProperty(to_string(unary(c.op)), std::to_string(worst));
      std::printf("  %-12s %-8s %.2f ULP at %.9g (%.3g absolute)\n", to_string(unary(c.op)).c_str(),
                  std::string(name_of(isa)).c_str(), worst, worst_at, worst_absolute);
      EXPECT_LE(worst, c.max_ulps) << to_string(unary(c.op)) << " at " << worst_at << " on " << name_of(isa);
    }
}

// x * (1 + erf(x)) of a large negative x is not a large number of its last place.
TEST(VectorMath, ErfEndsAtOneExactly) {
  std::vector<float> x;
  for (float magnitude = 4; x.size() < 32; magnitude *= 40) x.insert(x.end(), {magnitude, -magnitude});
  for (const Isa isa : isas_here()) {
    const std::vector<float> y = run(isa, unary(ExprOp::erf), {x});
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::copysign(1.0F, x[i])) << x[i] << " " << name_of(isa);
  }
}

// x * sigmoid(x) is a quotient, in sums, too.
TEST(VectorMath, MultipliesBySigmoidAsAccuratelyAsItIs) {
  Expression silu = unary(ExprOp::sigmoid);
  silu.add({.op = ExprOp::mul, .a = 0, .b = 1});
  Expression plus_one = silu;
  plus_one.add({.op = ExprOp::constant, .value = 1});
  plus_one.add({.op = ExprOp::add, .a = 2, .b = 3});
  const std::vector<float> x = all_floats(2003);
  for (const Isa isa : isas_here()) {
    const std::vector<float> y = run(isa, silu, {x}), z = run(isa, plus_one, {x});
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = x[i] * sigmoid(x[i]);
      // Behind the point where exp(-x) overflows, results of up to 3.7e-37 become 0.
      ASSERT_TRUE(ulps(y[i], exact) <= 3 || std::fabs(y[i] - exact) < 3.8e-37) << x[i] << " gives " << y[i];
      ASSERT_TRUE(ulps(z[i], exact + 1) <= 2 || std::fabs(z[i] - exact - 1) < 1e-6) << x[i] << " gives " << z[i];
    }
  }
}

// log(1 + exp(-|x|)), as Softplus has it: what is small is not lost in the sum.
TEST(VectorMath, AddsOneToPowersUnderLogarithmsWithoutLoss) {
  Expression tail = unary(ExprOp::abs);
  tail.add({.op = ExprOp::neg, .a = 1});
  tail.add({.op = ExprOp::exp, .a = 2});
  Expression swapped = tail;
  for (Expression* each : {&tail, &swapped}) {
    const bool is_first = each == &tail;
    each->add({.op = ExprOp::constant, .value = 1});
    each->add({.op = ExprOp::add, .a = is_first ? 3 : 4, .b = is_first ? 4 : 3});
    each->add({.op = ExprOp::log, .a = 5});
  }
  Expression softplus = tail;
  softplus.add({.op = ExprOp::constant, .value = 0});
  softplus.add({.op = ExprOp::max, .a = 0, .b = 7});
  softplus.add({.op = ExprOp::add, .a = 8, .b = 6});
  // 2 is no 1.
  Expression other = tail;
  other.nodes[4].value = 2;
  const std::vector<float> x = all_floats(2003);
  for (const Isa isa : isas_here()) {
    const std::vector<float> y = run(isa, tail, {x}), z = run(isa, softplus, {x}), v = run(isa, other, {x});
    EXPECT_EQ(0, std::memcmp(y.data(), run(isa, swapped, {x}).data(), y.size() * sizeof(float)));
    for (size_t i = 0; i < x.size(); ++i) {
      const double power = std::exp(-std::fabs(double{x[i]})), exact = std::log1p(power);
      ASSERT_LE(ulps(y[i], exact), 4) << x[i] << " gives " << y[i] << " on " << name_of(isa);
      ASSERT_LE(ulps(z[i], std::isnan(x[i]) ? x[i] : std::max(x[i], 0.0F) + exact), 4)
          << x[i] << " gives " << z[i] << " on " << name_of(isa);
      ASSERT_LE(ulps(v[i], std::log(2 + power)), 2) << x[i] << " gives " << v[i] << " on " << name_of(isa);
    }
  }
}

TEST(VectorMath, RaisesToPowersLikeC) {
  std::mt19937 random(7);
  std::vector<float> x, y;
  const float special[] = {0.0F, -0.0F, 1,    -1,       2,         -2,  3,      -3,
                           0.5F, -0.5F, 2.5F, INFINITY, -INFINITY, NAN, 1e-40F, -1e30F};
  for (const float a : special)
    for (const float b : special) x.push_back(a), y.push_back(b);
  std::uniform_real_distribution<float> exponents(-40, 40), logs(-3, 3);
  for (int i = 0; i < 400000; ++i) x.push_back(std::exp2(logs(random))), y.push_back(exponents(random));
  for (int i = 0; i < 400000; ++i) x.push_back(-std::exp2(logs(random))), y.push_back(std::round(exponents(random)));
  for (int i = 0; i < 100000; ++i) x.push_back(1 + logs(random) * 1e-4F), y.push_back(exponents(random) * 1e4F);
  while (x.size() % 16 != 0) x.push_back(1), y.push_back(1);
  for (const Isa isa : isas_here()) {
    const std::vector<float> z = run(isa, binary(ExprOp::pow), {x, y});
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(z[i], std::pow(static_cast<double>(x[i]), static_cast<double>(y[i])));
      worst = std::max(worst, error);
      ASSERT_LE(error, 2) << "pow(" << x[i] << ", " << y[i] << ") = " << z[i] << " on " << name_of(isa);
    }
    std::printf("  pow %s %.2f ULP\n", std::string(name_of(isa)).c_str(), worst);
  }
}

TEST(VectorMath, KnowsCommonExponents) {
  for (const float exponent : {0.0F, 1.0F, 2.0F, 3.0F, 4.0F, -1.0F, -2.0F, 0.5F, -0.5F, 1.7F}) {
    Expression expression{.inputs = {DType::f32}};
    expression.add({.op = ExprOp::input, .a = 0});
    expression.add({.op = ExprOp::constant, .value = exponent});
    expression.add({.op = ExprOp::pow, .a = 0, .b = 1});
    const std::vector<float> x = {0, -0.0F, 1, 2, 3, 0.1F, 1e10F, INFINITY, -INFINITY, NAN, 7, 8, 9, 1e-20F, 0.7F, -2};
    for (const Isa isa : isas_here()) {
      const std::vector<float> y = run(isa, expression, {x});
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_LE(ulps(y[i], std::pow(static_cast<double>(x[i]), static_cast<double>(exponent))), 4)
            << x[i] << " ^ " << exponent << " = " << y[i];
    }
  }
}

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
