// Functions of float64 by vectors against those of long double: over their ranges, at their ends, at special values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;

struct Function {
  const char* op;
  long double (*exact)(long double);
  double low, high, most_ulp;
};

long double exponential(long double x) { return std::exp(x); }
long double logarithm(long double x) { return std::log(x); }
long double tangent(long double x) { return std::tanh(x); }
long double logistic(long double x) { return 1 / (1 + std::exp(-x)); }

const Function kFunctions[] = {{"Exp", exponential, -740, 709, 1},
                               {"Log", logarithm, 1e-3, 10, 1},
                               {"Tanh", tangent, -20, 20, 3},
                               {"Sigmoid", logistic, -700, 40, 3}};

double ulp_of(long double value) {
  const double rounded = std::abs(static_cast<double>(value));
  return std::nextafter(rounded, INFINITY) - rounded;
}

std::vector<double> lowered(const char* op, const std::vector<double>& x) {
  OpTester tester(op);
  tester.input(Tensor::from<double>({static_cast<int64_t>(x.size())}, x));
  const auto made = tester.lowered(Isa::avx2, 1);
  EXPECT_TRUE(made.has_value()) << op;
  return reals_of((*made)[0]);
}

TEST(DoubleMath, IsOffByAFewUnitsOfTheLastPlace) {
  std::mt19937_64 random(11);
  for (const Function& function : kFunctions) {
    std::vector<double> x;
    std::uniform_real_distribution<double> wide(function.low, function.high), near(-1, 1);
    for (int i = 0; i < 200000; ++i) x.push_back(wide(random));
    for (int i = 0; i < 20000; ++i) {
      const double small = std::ldexp(near(random), -static_cast<int>(random() % 60));
      x.push_back(function.low > 0 ? std::abs(small) : small);
      if (function.low > 0) x.push_back(std::ldexp(std::abs(near(random)), static_cast<int>(random() % 2000) - 1000));
    }
    x.push_back(1);
    const std::vector<double> got = lowered(function.op, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const long double exact = function.exact(x[i]);
      ASSERT_LE(std::abs(static_cast<long double>(got[i]) - exact), function.most_ulp * ulp_of(exact))
          << function.op << "(" << x[i] << ")";
    }
  }
}

TEST(DoubleMath, KeepsItsSpecialValues) {
  const double infinity = std::numeric_limits<double>::infinity(), least = std::numeric_limits<double>::denorm_min();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> x = {infinity, -infinity, nan, 0.0, -0.0, least, 1e300, -1e300, -745, 710};
  for (const Function& function : kFunctions) {
    const std::vector<double> got = lowered(function.op, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto expected = static_cast<double>(function.exact(x[i]));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got[i])) << function.op << "(" << x[i] << ")";
      } else {
        EXPECT_DOUBLE_EQ(got[i], expected) << function.op << "(" << x[i] << ")";
      }
    }
  }
}

TEST(DoubleMath, LeavesWhatLiesBehindARow) {
  for (const int64_t length : {1, 2, 3, 4, 5, 7, 9, 4097, 12291}) {
    std::vector<double> x(static_cast<size_t>(length), 0.5);
    for (const double value : lowered("Exp", x)) EXPECT_DOUBLE_EQ(value, std::exp(0.5));
  }
}

TEST(DoubleMath, ServesActivations) {
  for (const char* op : {"LeakyRelu", "Elu", "Softplus", "HardSigmoid", "Relu", "Gelu", "PRelu"}) {
    OpTester tester(op, 20);
    tester.input(Tensor::from<double>({2, 3}, {-2.5, -1, -0.25, 0, 0.75, 3}));
    if (std::string(op) == "PRelu") tester.input(Tensor::from<double>({3}, {0.1, 0.2, 0.3}));
    const auto made = tester.lowered(Isa::avx2, 1);
    ASSERT_TRUE(made) << op;
    EXPECT_EQ(reals_of((*made)[0]), reals_of(tester.result())) << op;
  }
}

}  // namespace
}  // namespace lathe
