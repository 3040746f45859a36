// The functions of vector code: accuracy against double-precision libm over a dense sweep of all float32 numbers, on
// each instruction set.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/jit/epilogue_loop.h"

namespace lathe {
namespace {

using testing::binary;
using testing::isas_here;
using testing::run;
using testing::unary;

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
  double wide_ulps = max_ulps;    // on AVX-512
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(VectorMath, KeepsItsStatedErrorsOverAllFloats) {
  const AccuracyCase cases[] = {
      {ExprOp::exp, std::exp, 1, 0},
      {ExprOp::log, std::log, 1, 0},
      {ExprOp::erf, std::erf, 6, 0, INFINITY, 3},
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
      EXPECT_LE(worst, has_avx512(isa) ? c.wide_ulps : c.max_ulps)
          << to_string(unary(c.op)) << " at " << worst_at << " on " << name_of(isa);
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

}  // namespace
}  // namespace lathe
