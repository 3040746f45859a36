#include "jit/kernels/rows/normalize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "jit/kernels/rows/affine_rows.h"
#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

struct Case {
  NormalizePlan plan;
  int64_t rows, columns;
  float offset;  // added to every element: a large mean against the deviation
};

class Operands {
 public:
  Operands(const Case& tested, std::mt19937& random)
      : case_(tested),
        from_(elements(), random() % 2 == 0),
        to_(elements()),
        skip_(elements(), random() % 2 == 0),
        sum_(elements()),
        scale_(columns()),
        bias_(columns()),
        skip_bias_(columns()),
        means_(static_cast<size_t>(tested.rows)),
        deviations_(static_cast<size_t>(tested.rows)) {
    for (GuardedFloats* floats : {&skip_, &scale_, &bias_, &skip_bias_}) floats->randomize(random, -2, 2);
    from_.randomize(random, tested.offset - 2, tested.offset + 2);
  }

  void run() {
    const NormalizeArgs args{from_.data(),
                             to_.data(),
                             case_.rows,
                             case_.columns,
                             scale_.data(),
                             bias_.data(),
                             skip_.data(),
                             skip_bias_.data(),
                             sum_.data(),
                             means_.data(),
                             deviations_.data(),
                             kEpsilon,
                             1.0f / static_cast<float>(case_.columns)};
    normalize_kernel(case_.plan)(&args);
  }

  void check() const {
    for (size_t row = 0; row < static_cast<size_t>(case_.rows); ++row) check_row(row);
  }

 private:
  static constexpr float kEpsilon = 1e-5f;
  size_t columns() const { return static_cast<size_t>(case_.columns); }
  size_t elements() const { return static_cast<size_t>(case_.rows) * columns(); }

  void check_row(size_t row) const {
    std::vector<double> x;
    for (size_t i = 0; i < columns(); ++i) {
      const size_t at = row * columns() + i;
      float value = from_[at];
      if (case_.plan.adds_skip) value += skip_[at];
      if (case_.plan.adds_bias) value += skip_bias_[i];
      if (case_.plan.adds_skip) {
        ASSERT_EQ(sum_[at], value);
      }
      x.push_back(static_cast<double>(value));
    }
    double mean = 0, square = 0;
    if (case_.plan.centers) {
      for (const double value : x) mean += value / static_cast<double>(columns());
    }
    for (const double value : x) square += (value - mean) * (value - mean) / static_cast<double>(columns());
    const double deviation = 1 / std::sqrt(square + static_cast<double>(kEpsilon));
    // Roundings of the mean (relative to the largest element) come out multiplied by the deviation.
    const double eps = 6e-8 * (8 + static_cast<double>(columns()) / 32);
    const double largest = 4 + std::abs(static_cast<double>(case_.offset)) * 2;
    if (case_.plan.writes_statistics) {
      if (case_.plan.centers) {
        ASSERT_NEAR(means_[row], mean, eps * largest);
      }
      ASSERT_NEAR(deviations_[row], deviation, deviation * (eps + eps * largest * deviation));
    }
    if (!case_.plan.writes_rows) return;
    for (size_t i = 0; i < columns(); ++i) {
      double want = (x[i] - mean) * deviation;
      const double bound =
          (std::abs(want) + largest * deviation + 1) * eps * 2 * (1 + largest * deviation * std::abs(want));
      if (case_.plan.has_scale) want *= static_cast<double>(scale_[i]);
      if (case_.plan.has_bias) want += static_cast<double>(bias_[i]);
      ASSERT_NEAR(to_[row * columns() + i], want, bound * 4) << "row " << row << " column " << i;
    }
  }

  Case case_;
  GuardedFloats from_, to_, skip_, sum_, scale_, bias_, skip_bias_, means_, deviations_;
};

TEST(NormalizeKernel, MatchesFloat64ForEveryPlanAndTail) {
  std::mt19937 random(5);
  for (const Isa isa : testing::isas_here()) {
    for (int bits = 0; bits < 256; ++bits) {
      const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
      const NormalizePlan plan{isa,    bit(0), bit(1), bit(2), bit(3), bit(3) && bit(4), bit(5) || !bit(6),
                               bit(6), bit(7)};
      for (int i = 0; i < 6; ++i) {
        const Case tested{plan, 1 + static_cast<int64_t>(random() % 8), 1 + static_cast<int64_t>(random() % 150),
                          i % 2 == 0 ? 0.0f : 3.0f};
        SCOPED_TRACE(std::string(name_of(isa)) + " " + to_string(plan) + " columns " + std::to_string(tested.columns));
        Operands operands(tested, random);
        operands.run();
        operands.check();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(NormalizeKernel, KeepsItsAccuracyOnWideRowsWithALargeMean) {
  std::mt19937 random(6);
  for (const Isa isa : testing::isas_here()) {
    for (const bool joins_passes : {false, true}) {
      Operands operands({{.isa = isa, .has_scale = true, .has_bias = true, .joins_passes = joins_passes}, 2, 3072, 50},
                        random);
      operands.run();
      operands.check();
    }
  }
}

// Threads share rows: whose number must not show in the results.
TEST(NormalizeKernel, GivesARowTheSameBitsBesideAnyOthers) {
  std::mt19937 random(8);
  for (const Isa isa : testing::isas_here()) {
    for (int i = 0; i < 60; ++i) {
      const NormalizePlan plan{.isa = isa,
                               .centers = i % 3 != 0,
                               .has_scale = true,
                               .has_bias = true,
                               .writes_statistics = true,
                               .joins_passes = i % 2 == 0};
      const int64_t rows = 7, columns = 1 + static_cast<int64_t>(random() % (i % 5 == 0 ? 900 : 200));
      const auto count = static_cast<size_t>(columns);
      GuardedFloats from(rows * count), scale(count), bias(count), together(rows * count), apart(rows * count),
          statistics(4 * rows);
      from.randomize(random, 1, 3);
      for (GuardedFloats* floats : {&scale, &bias}) floats->randomize(random, -2, 2);
      const auto run = [&](GuardedFloats& to, int64_t first, int64_t many, float* of_rows) {
        const NormalizeArgs args{.from = from.data() + first * columns,
                                 .to = to.data() + first * columns,
                                 .rows = many,
                                 .columns = columns,
                                 .scale = scale.data(),
                                 .bias = bias.data(),
                                 .means = of_rows + first,
                                 .deviations = of_rows + rows + first,
                                 .epsilon = 1e-5f,
                                 .column_share = 1.0f / static_cast<float>(columns)};
        normalize_kernel(plan)(&args);
      };
      run(together, 0, rows, statistics.data());
      for (int64_t row = 0; row < rows; ++row) run(apart, row, 1, statistics.data() + 2 * rows);
      SCOPED_TRACE(std::string(name_of(isa)) + " " + to_string(plan) + " columns " + std::to_string(columns));
      for (size_t at = 0; at < together.size(); ++at) ASSERT_EQ(together[at], apart[at]) << at;
      const size_t first = plan.centers ? 0 : static_cast<size_t>(rows);
      for (size_t at = first; at < 2 * static_cast<size_t>(rows); ++at) {
        ASSERT_EQ(statistics[at], statistics[at + 2 * static_cast<size_t>(rows)]) << at;
      }
    }
  }
}

TEST(AffineRowsKernel, ScalesEachRowByItsOwnScalars) {
  std::mt19937 random(7);
  for (const Isa isa : testing::isas_here()) {
    for (size_t columns = 1; columns < 80; ++columns) {
      GuardedFloats from(3 * columns), to(3 * columns, true), centers(3), scales(3), shifts(3);
      for (GuardedFloats* floats : {&from, &centers, &scales, &shifts}) floats->randomize(random, -2, 2);
      const AffineArgs args{from.data(),   to.data(),    3, static_cast<int64_t>(columns), centers.data(),
                            scales.data(), shifts.data()};
      affine_rows_kernel(isa)(&args);
      for (size_t i = 0; i < from.size(); ++i) {
        const size_t row = i / columns;
        ASSERT_EQ(to[i], std::fma(from[i] - centers[row], scales[row], shifts[row]));
      }
    }
  }
}

}  // namespace
}  // namespace lathe
