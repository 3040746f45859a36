#include "ops/conv/chain_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/conv_axis.h"

namespace lathe {
namespace {

using testing::axis;

// Every row that a stage reads was computed by this thread and is still at hand, and every row of the last stage is
// computed once.
TEST(ChainSchedule, EachBandReadsRowsThatAreAtHand) {
  std::mt19937 random(20261128);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<ChainSchedule::Stage> stages;
    for (int64_t count = pick(2, 4), rows = pick(1, 40); count > 0; --count) {
      const int taps = 1 + 2 * static_cast<int>(pick(0, 2)), stride = static_cast<int>(pick(1, 2));
      stages.push_back({axis(rows, taps, taps / 2, taps / 2, stride), 1});
      rows = stages.back().y.out;
    }
    const int threads = static_cast<int>(pick(1, 5));
    const int64_t images = pick(1, 3), rows = stages.back().y.out;
    const ChainSchedule schedule(stages, images, threads, pick(1, 8));
    std::vector<int> computed(static_cast<size_t>(images * rows), 0);
    for (int thread = 0; thread < threads; ++thread) {
      ChainBand before{};
      schedule.for_units(thread, [&](const ChainSchedule::Unit& unit) {
        const ChainBand& band = *unit.band;
        for (size_t s = 0; s < stages.size(); ++s) {
          const StageBand& own = band[s];
          const bool is_last = s + 1 == stages.size();
          ASSERT_LE(own.kept, own.first);
          if (own.kept < own.first && !is_last) {
            ASSERT_FALSE(unit.is_fresh);
            ASSERT_LE(before[s].kept, own.kept);
            ASSERT_EQ(before[s].end(), own.first);
          }
          ASSERT_LE(own.end() - own.kept, schedule.most_rows(s));
          if (own.rows == 0) continue;
          const BandAxis part = band_of(stages[s].y, own.first, own.rows);
          ASSERT_EQ(schedule.axes(s)[static_cast<size_t>(own.axis)], part.axis);
          ASSERT_EQ(own.source, part.source);
          if (s > 0 && part.axis.in > 0) {
            ASSERT_EQ(own.source, band[s - 1].kept);
            ASSERT_LE(own.source + part.axis.in, band[s - 1].end());
          }
        }
        for (int64_t row = band[stages.size() - 1].first; row < band[stages.size() - 1].end(); ++row)
          ++computed[static_cast<size_t>(unit.image * rows + row)];
        before = band;
      });
    }
    EXPECT_EQ(std::count(computed.begin(), computed.end(), 1), images * rows);
  }
}

TEST(ChainSchedule, KnowsWhatThreadsRepeat) {
  const auto longest = [](int64_t rows, int threads) {
    return ChainSchedule({{axis(rows, 1, 0, 0), 100}, {axis(rows, 5, 2, 2), 1}}, 1, threads, 4).longest_share();
  };
  EXPECT_DOUBLE_EQ(longest(6, 1), 1);
  // Rows 0 to 4, and 1 to 5, of which an even share is three.
  EXPECT_NEAR(longest(6, 2), 5.0 / 3, 0.01);
  EXPECT_NEAR(longest(160, 2), 82.0 / 80, 0.001);
}

}  // namespace
}  // namespace lathe
