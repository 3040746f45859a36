#include "jit/kernels/resize/mix_elements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

// Sums of neighbours, as far apart as the row is longer than the result, or anywhere.
MixTerms random_terms(int terms, bool blends, int64_t extent, int64_t sums, bool anywhere, std::mt19937& random) {
  MixTerms mix{.terms = terms, .blends = blends, .places = {}, .weights = {}};
  std::uniform_real_distribution<float> weight(-0.5F, 1);
  for (int64_t i = 0; i < sums; ++i) {
    const int64_t first = i * extent / sums;
    for (int64_t term = 0; term < terms; ++term) {
      const int64_t place = anywhere ? static_cast<int64_t>(random() % static_cast<size_t>(extent)) : first + term;
      mix.places.push_back(static_cast<int32_t>(std::min(place, extent - 1)));
      mix.weights.push_back(blends && term == 1 ? 1 - mix.weights.back() : weight(random));
    }
  }
  return mix;
}

struct MixedElements {
  Isa isa;
  int64_t extent, rows, gap;
  MixedRoom room;
};

void expect_mixed(const MixTerms& mix, const MixedElements& c, std::mt19937& random) {
  const MixElementsTable table = mix_elements_table(mix, c.extent, c.isa, c.room);
  SCOPED_TRACE(to_string(table.plan) + ": " + std::to_string(mix.count()) + " of " + std::to_string(c.extent));
  const int64_t from_row = c.extent + c.gap, to_row = table.sums + c.gap;
  const bool at_border = random() % 2 == 0;
  GuardedFloats from(static_cast<size_t>(c.rows * from_row - c.gap), at_border);
  GuardedFloats to(static_cast<size_t>(c.rows * to_row - c.gap), at_border);
  from.randomize(random, -1, 1);
  for (size_t i = 0; i < to.size(); ++i) to[i] = 7;
  const MixElementsArgs args{.from = from.data(),
                             .to = to.data(),
                             .offsets = table.offsets.data(),
                             .order = table.order.data(),
                             .weights = table.weights.data(),
                             .masks = table.masks.data(),
                             .sums = table.sums,
                             .rows = c.rows,
                             .from_row = from_row * 4,
                             .to_row = to_row * 4};
  mix_elements_kernel(table.plan)(&args);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < mix.count(); ++i) {
      double sum = 0, magnitude = 0;
      for (int term = 0; term < mix.terms; ++term) {
        const auto at = static_cast<size_t>(i * mix.terms + term);
        const auto value = static_cast<double>(from[static_cast<size_t>(row * from_row + mix.places[at])]);
        sum += value * static_cast<double>(mix.weights[at]);
        magnitude += std::abs(value) * (1 + std::abs(static_cast<double>(mix.weights[at])));
      }
      ASSERT_NEAR(static_cast<double>(to[static_cast<size_t>(row * to_row + i)]), sum, magnitude * 8 * 6e-8)
          << "sum " << i << " of row " << row;
    }
    for (int64_t i = table.sums; i < to_row && row + 1 < c.rows; ++i)
      ASSERT_EQ(to[static_cast<size_t>(row * to_row + i)], 7);
  }
}

TEST(MixElements, AddsUpWeightedElementsOfEveryRow) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    for (int round = 0; round < 3000; ++round) {
      const int terms = 1 + static_cast<int>(random() % (random() % 4 == 0 ? 20 : 5));
      const bool blends = terms == 2 && random() % 2 == 0, anywhere = random() % 8 == 0;
      const auto extent = 1 + static_cast<int64_t>(random() % 90), sums = 1 + static_cast<int64_t>(random() % 90);
      const MixTerms mix = random_terms(terms, blends, extent, sums, anywhere, random);
      expect_mixed(mix,
                   {isa, extent, 1 + static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 4),
                    random() % 2 == 0 ? MixedRoom::sums : MixedRoom::vectors},
                   random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MixElements, TakesAsFewWindowsAsSumsNeed) {
  std::mt19937 random(2);
  for (const Isa isa : testing::isas_here()) {
    const int64_t lanes = vector_lanes(isa);
    const auto windows = [&](int64_t extent, int64_t sums) {
      return mix_elements_table(random_terms(2, true, extent, sums, false, random), extent, isa, MixedRoom::sums)
          .plan.windows;
    };
    EXPECT_EQ(windows(4 * lanes, 8 * lanes), 1);
    EXPECT_EQ(windows(8 * lanes, 6 * lanes), 2);
    EXPECT_EQ(windows(24 * lanes, 8 * lanes), 0);
  }
}

// An element that no term names is not read, but for its neighbours' sake: infinities stay where they are.
TEST(MixElements, LeavesWhatHasNoWeightAlone) {
  for (const Isa isa : testing::isas_here()) {
    const MixTerms mix{.terms = 2, .blends = false, .places = {0, 0, 1, 2}, .weights = {1, 0, 0.5F, 0.5F}};
    const float from[] = {3, INFINITY, 5};
    float to[2];
    const MixElementsTable table = mix_elements_table(mix, 3, isa, MixedRoom::sums);
    const MixElementsArgs args{
        from, to, table.offsets.data(), table.order.data(), table.weights.data(), table.masks.data(), table.sums, 1,
        12,   8};
    mix_elements_kernel(table.plan)(&args);
    EXPECT_EQ(to[0], 3);
    EXPECT_EQ(to[1], INFINITY);
  }
}

}  // namespace
}  // namespace lathe
