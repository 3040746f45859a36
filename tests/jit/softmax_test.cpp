#include "jit/kernels/rows/softmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

// In float64, over elements `stride` apart.
std::vector<double> expected_of(const float* from, int64_t count, int64_t stride, bool is_log) {
  double top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, static_cast<double>(from[i * stride]));
  for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(from[i * stride]) - top);
  std::vector<double> result;
  for (int64_t i = 0; i < count; ++i) {
    const double shifted = static_cast<double>(from[i * stride]) - top;
    result.push_back(is_log ? shifted - std::log(sum) : std::exp(shifted) / sum);
  }
  return result;
}

// exp is right to 2 ulp, x - top to half an ulp of a value below 64; the sum of n terms adds n/lanes roundings.
double tolerance(double expected, int64_t count, bool is_log) {
  const double eps = 6e-8;
  if (is_log) return eps * (std::abs(expected) + 40 + static_cast<double>(count) / 8);
  return expected * eps * (70 + static_cast<double>(count) / 8) + 1e-38;
}

void check(const SoftmaxPlan& plan, int64_t rows, int64_t columns, float range, std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(plan.isa)) + " " + to_string(plan) + " " + std::to_string(rows) + "x" +
               std::to_string(columns));
  GuardedFloats from(static_cast<size_t>(rows * columns), random() % 2 == 0), to(from.size(), random() % 2 == 0);
  from.randomize(random, -range, range);
  GuardedFloats kept(static_cast<size_t>(rows * (plan.keeps_columns ? kSoftmaxColumnsTogether : 0)));
  const SoftmaxArgs args{from.data(), to.data(), rows, columns, columns * 4, kept.data()};
  softmax_kernel(plan)(&args);
  const int64_t apart = plan.interleaved;
  const int64_t lines = plan.is_strided ? columns : rows * apart, count = plan.is_strided ? rows : columns / apart;
  const int64_t stride = plan.is_strided ? columns : apart;
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t first = plan.is_strided ? line : line / apart * columns + line % apart;
    const std::vector<double> expected = expected_of(from.data() + first, count, stride, plan.is_log);
    for (int64_t i = 0; i < count; ++i) {
      const double want = expected[static_cast<size_t>(i)];
      ASSERT_NEAR(to[static_cast<size_t>(first + i * stride)], want, tolerance(want, count, plan.is_log))
          << "line " << line << " element " << i;
    }
  }
}

TEST(SoftmaxKernel, MatchesFloat64OnAllTails) {
  std::mt19937 random(4);
  for (const Isa isa : testing::isas_here()) {
    for (const bool is_log : {false, true}) {
      for (const bool is_strided : {false, true}) {
        for (int64_t columns = 1; columns <= 70; ++columns) {
          check({isa, is_log, is_strided}, 1 + static_cast<int64_t>(random() % 5), columns, 20, random);
        }
        check({isa, is_log, is_strided}, 3, 1000, 5, random);
        check({isa, is_log, is_strided}, 197, 197, 5, random);
      }
      for (int64_t columns = 1; columns <= 140; ++columns) {
        check({isa, is_log, true, true}, 1 + static_cast<int64_t>(random() % 30), columns, 20, random);
      }
    }
  }
}

TEST(SoftmaxKernel, MatchesFloat64OnInterleavedRows) {
  std::mt19937 random(5);
  for (const Isa isa : testing::isas_here()) {
    for (const bool is_log : {false, true}) {
      for (const int apart : {2, 4, 8}) {
        for (int64_t count = 1; count <= 70; ++count) {
          check({isa, is_log, false, false, apart}, 1 + static_cast<int64_t>(random() % 5), count * apart, 20, random);
        }
        check({isa, is_log, false, false, apart}, 3, 1000 * apart, 5, random);
      }
    }
  }
}

TEST(SoftmaxKernel, WorksInPlaceAndOnMaskedScores) {
  for (const Isa isa : testing::isas_here()) {
    GuardedFloats data(20);
    for (size_t i = 0; i < 20; ++i) data[i] = i < 5 ? 1.0f : -INFINITY;
    const SoftmaxArgs args{data.data(), data.data(), 1, 20, 0};
    softmax_kernel({.isa = isa})(&args);
    for (size_t i = 0; i < 20; ++i) ASSERT_NEAR(data[i], i < 5 ? 0.2 : 0.0, 1e-7);
  }
}

TEST(SoftmaxKernel, SpreadsNaNOverItsRowOnly) {
  for (const Isa isa : testing::isas_here()) {
    GuardedFloats data(40);
    for (size_t i = 0; i < 40; ++i) data[i] = 1;
    data[7] = std::nanf("");
    const SoftmaxArgs args{data.data(), data.data(), 2, 20, 0};
    softmax_kernel({.isa = isa})(&args);
    for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(std::isnan(data[i]));
    for (size_t i = 20; i < 40; ++i) EXPECT_NEAR(data[i], 0.05f, 1e-7);
  }
}

}  // namespace
}  // namespace lathe
