#include <gtest/gtest.h>

#include <set>

#include "ops/conv/conv_program.h"

namespace lathe {
namespace {

TEST(ConvSplit, CutsLargeWeightsForThreadsThatKeepTheirPixels) {
  constexpr double kFlop = 100e6;
  for (const int threads : {2, 3}) {
    ConvSplit split{1, threads};
    split.refine(kFlop, threads, 1 << 20, 16);
    EXPECT_GT(split.count(), threads);
    std::set<std::pair<int, int>> parts;
    const int each = split.count() / threads;
    for (int share = 0; share < split.count(); ++share) {
      EXPECT_EQ(split.pixel_part(share), share / each) << "the first shares that a thread takes are of its pixels";
      EXPECT_LT(split.channel_part(share), split.channels);
      parts.emplace(split.channel_part(share), split.pixel_part(share));
    }
    EXPECT_EQ(parts.size(), static_cast<size_t>(split.count()));
    ConvSplit small{1, threads};
    small.refine(kFlop, threads, 1 << 10, 16);
    EXPECT_EQ(small.channels, 1) << "small weights may be read again for fewer pixels";
    EXPECT_GT(small.pixels, threads);
  }
}

}  // namespace
}  // namespace lathe
