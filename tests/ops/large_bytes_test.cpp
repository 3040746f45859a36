// What counts as large together, at the bounds.
#include "ops/int8/large_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace lathe {
namespace {

// Of parts of eight bytes.
std::vector<LargeBytes> parts_of(const std::vector<uint8_t>& row, int most) {
  std::vector<LargeBytes> large((row.size() + 7) / 8, LargeBytes::none);
  find_large_parts(row.data(), static_cast<int64_t>(row.size()), 8, most, large.data());
  return large;
}

LargeBytes plainly(const uint8_t* part, int most) {
  LargeBytes what = LargeBytes::none;
  for (int i = 0; i < 4; i += 2) {
    const int first = part[i] + part[i + 1], second = part[i + 4] + part[i + 5];
    if (first + second > most) what = std::max(what, LargeBytes::fours);
    if (std::max(first, second) > most) what = LargeBytes::neighbours;
  }
  return what;
}

TEST(LargeBytes, AreThoseThatAddUpToMore) {
  const std::vector<uint8_t> row = {64,  64, 64, 64,  64,  64, 64, 64,  // four are 256
                                    64,  64, 0,  0,   64,  65, 0,  0,   // 257
                                    128, 0,  0,  128, 128, 0,  0,  0,   // neighbours, and no four
                                    255, 1,  0,  0,   0,   0,  0,  0,   // two are 256
                                    255, 2,  0,  0,   0,   0,  0,  0,   // 257
                                    255, 255};
  const auto none = LargeBytes::none, fours = LargeBytes::fours, neighbours = LargeBytes::neighbours;
  EXPECT_EQ(parts_of(row, 256), (std::vector{none, fours, none, none, neighbours, neighbours}));
  EXPECT_EQ(parts_of(row, 511), (std::vector(6, none)));
}

TEST(LargeBytes, OfRandomRowsAreThoseOfPlainLoops) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const unsigned below = 1 + random() % 256;
    std::vector<uint8_t> row(8 * (1 + random() % 40));
    for (uint8_t& byte : row) byte = static_cast<uint8_t>(random() % below);
    const int most = round % 2 == 0 ? kMostOfNeighbours : kMostBesideSevenBits;
    const std::vector<LargeBytes> large = parts_of(row, most);
    for (size_t i = 0; i < large.size(); ++i) ASSERT_EQ(large[i], plainly(row.data() + 8 * i, most)) << i;
    for (size_t at = 0; at + 4 * kLargeTogether <= row.size(); at += 8) {
      LargeBytes most_of_all = LargeBytes::none;
      for (size_t i = 0; i < 4 * kLargeTogether; i += 8) {
        most_of_all = std::max(most_of_all, plainly(row.data() + at + i, most));
      }
      ASSERT_EQ(has_large(row.data() + at, true, most), most_of_all != LargeBytes::none);
      ASSERT_EQ(has_large(row.data() + at, false, most), most_of_all == LargeBytes::neighbours);
    }
  }
}

TEST(LargeBytes, OfSignedOnesAreNeighboursOfOneSign) {
  const std::vector<int8_t> row = {64, 64, -64, -64, 127, -128, -128, 0,      // each 128 at most
                                   64, 65, 0,   0,   0,   0,    0,    0,      // 129
                                   0,  0,  0,   0,   -1,  -128, 127,  -127};  // -129
  std::vector<LargeBytes> large(3, LargeBytes::none);
  find_large_parts(row.data(), static_cast<int64_t>(row.size()), 8, large.data());
  EXPECT_EQ(large, (std::vector{LargeBytes::none, LargeBytes::neighbours, LargeBytes::neighbours}));
}

TEST(LargeBytes, WeightsOfSevenBitsAllowMore) {
  std::vector<int8_t> weights(10'000, 64);
  weights[9'000] = -64;
  EXPECT_EQ(most_together(weights), kMostBesideSevenBits);
  weights[9'000] = -65;
  EXPECT_EQ(most_together(weights), kMostOfNeighbours);
}

TEST(LargeBytes, ManyAreTakenToBeEverywhere) {
  std::vector<LargeBytes> large(8, LargeBytes::none);
  large[1] = LargeBytes::neighbours;
  large[5] = LargeBytes::fours;
  const std::vector<LargeBytes> few = large;
  prefer_one_way(large);
  EXPECT_EQ(large, few);
  large[7] = LargeBytes::fours;
  prefer_one_way(large);
  EXPECT_EQ(std::count(large.begin(), large.end(), LargeBytes::none), 0);
  EXPECT_EQ(std::count(large.begin(), large.end(), LargeBytes::neighbours), 1);
}

}  // namespace
}  // namespace lathe
