#include "jit/kernels/rows/attention_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/half.h"
#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of one block of keys or, with `continues`, a second block behind one of which top and sum are given.
struct Rows {
  int64_t rows, columns, stride;
  GuardedFloats scores{static_cast<size_t>((rows - 1) * stride + columns)};
  GuardedFloats tops{static_cast<size_t>(rows)}, sums{static_cast<size_t>(rows)}, factors{static_cast<size_t>(rows)};

  float& at(int64_t row, int64_t column) { return scores[static_cast<size_t>(row * stride + column)]; }
  void run(Isa isa, bool continues) {
    const AttentionSoftmaxArgs args{scores.data(), rows, columns, stride * 4, tops.data(), sums.data(), factors.data()};
    attention_softmax_kernel({isa, continues})(&args);
  }
};

// exp is right to 1 + |x| / 30 units, x - top to half a unit of its own.
double tolerance_of(double x) {
  return std::exp(x) * 6e-8 * (4 + 1.1 * std::abs(x)) + 1.2e-38;
}  // below the least normal number: 0

void check(Isa isa, bool continues, int64_t rows, int64_t columns, float range, std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(isa)) + (continues ? " continued " : " first ") + std::to_string(rows) + "x" +
               std::to_string(columns) + " range " + std::to_string(range));
  Rows block{rows, columns, columns + 5};
  block.scores.randomize(random, -range, range);
  std::vector<float> before(block.scores.data(), block.scores.data() + block.scores.size()), old_tops, old_sums;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    old_tops.push_back(std::uniform_real_distribution<float>(-range, 2 * range)(random));
    old_sums.push_back(std::uniform_real_distribution<float>(0, 9)(random));
    if (continues) block.tops[row] = old_tops[row], block.sums[row] = old_sums[row];
  }
  block.run(isa, continues);
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    float top = continues ? old_tops[index] : -kInfinity;
    const float* x = before.data() + row * block.stride;
    for (int64_t i = 0; i < columns; ++i) top = std::max(top, x[i]);
    ASSERT_EQ(block.tops[index], top);
    double sum = 0, slack = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const double off = static_cast<double>(x[i]) - static_cast<double>(top);
      ASSERT_NEAR(block.at(row, i), std::exp(off), tolerance_of(off)) << "exp of " << off;
      sum += std::exp(off);
      slack += tolerance_of(off);
    }
    if (continues) {
      const double off = static_cast<double>(old_tops[index]) - static_cast<double>(top);
      ASSERT_NEAR(block.factors[index], std::exp(off), tolerance_of(off));
      sum += old_sums[index] * std::exp(off);
      slack += old_sums[index] * tolerance_of(off);
    }
    ASSERT_NEAR(block.sums[index], sum, slack + sum * 6e-8 * (8 + static_cast<double>(columns) / 8));
    for (int64_t i = columns; i < block.stride && row + 1 < rows; ++i)
      ASSERT_EQ(block.at(row, i), before[static_cast<size_t>(row * block.stride + i)]) << "written behind a row";
  }
}

TEST(AttentionSoftmax, MatchesFloat64OnAllTails) {
  std::mt19937 random(11);
  for (const Isa isa : testing::isas_here()) {
    for (const bool continues : {false, true}) {
      for (int64_t columns = 1; columns <= 140; ++columns) {
        check(isa, continues, 1 + static_cast<int64_t>(random() % 5), columns, columns % 2 == 0 ? 8 : 60, random);
      }
    }
  }
}

TEST(AttentionSoftmax, NarrowsToBfloat16InPlace) {
  if (usable_isa() != Isa::avx512_bf16) GTEST_SKIP() << "the CPU has no bfloat16";
  std::mt19937 random(12);
  for (int64_t columns = 1; columns <= 140; ++columns) {
    const int64_t stride = (columns + 15) / 16 * 16;
    Rows wide{4, columns, stride}, narrow{4, columns, stride};  // the last row gives the one before its room
    wide.scores.randomize(random, -9, 9);
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < columns; ++i) narrow.at(row, i) = wide.at(row, i);
    wide.run(Isa::avx512, false);
    const AttentionSoftmaxArgs args{
        narrow.scores.data(), 3, columns, narrow.stride * 4, narrow.tops.data(), narrow.sums.data(),
        narrow.factors.data()};
    attention_softmax_kernel({Isa::avx512_bf16, false, true})(&args);
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_EQ(narrow.sums[static_cast<size_t>(row)], wide.sums[static_cast<size_t>(row)]);
      for (int64_t i = 0; i < stride; ++i) {
        uint16_t got = 0;
        std::memcpy(&got, reinterpret_cast<const char*>(&narrow.at(row, 0)) + 2 * i, 2);
        const float want = i < columns ? wide.at(row, i) : 0;
        // The conversion takes denormals for 0.
        ASSERT_EQ(got, std::abs(want) < 0x1p-126F ? 0 : float_to_bfloat(want)) << columns << " columns, " << i;
      }
    }
  }
}

TEST(AttentionSoftmax, RefusesToNarrowWithoutTheInstructions) {
  EXPECT_THROW(attention_softmax_kernel({Isa::avx512, false, true}), JitError);
}

TEST(AttentionSoftmax, ExponentialsVanishFarBelowTheTop) {
  for (const Isa isa : testing::isas_here()) {
    Rows block{1, 64, 64};
    for (int64_t i = 0; i < 64; ++i) block.at(0, i) = -static_cast<float>(i) * 2;
    block.at(0, 63) = -kInfinity;
    block.at(0, 62) = -3e38F;
    block.run(isa, false);
    for (int64_t i = 0; i < 62; ++i) {
      ASSERT_NEAR(block.at(0, i), std::exp(-2.0 * static_cast<double>(i)), tolerance_of(-2.0 * static_cast<double>(i)));
    }
    EXPECT_EQ(block.at(0, 62), 0);
    EXPECT_EQ(block.at(0, 63), 0);
  }
}

// A core that rounds them among denormals takes some hundred cycles for each, and so for each masked score.
TEST(AttentionSoftmax, ExponentialsBelowTheLeastNormalNumberAreZero) {
  for (const Isa isa : testing::isas_here()) {
    Rows block{1, 64, 64};
    for (int64_t i = 0; i < 64; ++i) block.at(0, i) = i == 0 ? 0 : -87.7F - static_cast<float>(i);
    block.run(isa, false);
    for (int64_t i = 1; i < 64; ++i) EXPECT_EQ(block.at(0, i), 0) << name_of(isa) << ", " << i;
  }
}

TEST(AttentionSoftmax, ARowOfMinusInfinitiesSumsToZero) {
  for (const Isa isa : testing::isas_here()) {
    Rows block{2, 37, 37};
    for (int64_t i = 0; i < 37; ++i) block.at(0, i) = -kInfinity, block.at(1, i) = 1;
    block.run(isa, false);
    EXPECT_EQ(block.sums[0], 0);
    EXPECT_EQ(block.sums[1], 37);
  }
}

TEST(AttentionSoftmax, NanStaysNan) {
  for (const Isa isa : testing::isas_here()) {
    for (const int64_t place : {0, 20, 36}) {
      Rows block{1, 37, 37};
      for (int64_t i = 0; i < 37; ++i) block.at(0, i) = 0;
      block.at(0, place) = std::nanf("");
      block.run(isa, false);
      EXPECT_TRUE(std::isnan(block.sums[0])) << place;
    }
  }
}

}  // namespace
}  // namespace lathe
