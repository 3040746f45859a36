#include "jit/kernels/copy/repeat_pixels.h"

#include <gtest/gtest.h>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

TEST(RepeatPixels, WritesEachPickedPixelToEveryRow) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    const auto lanes = static_cast<size_t>(vector_lanes(isa));
    for (size_t pixels = 1; pixels <= 35; ++pixels) {
      const size_t sources = 1 + random() % 20, rows = 1 + random() % 4, stride = (pixels + random() % 3) * lanes;
      const bool at_border = random() % 2 == 0;
      GuardedFloats from(sources * lanes, at_border), to((rows - 1) * stride + pixels * lanes, at_border);
      from.randomize(random, -1, 1);
      std::vector<size_t> picks;
      std::vector<int32_t> offsets;
      for (size_t i = 0; i < pixels; ++i) {
        picks.push_back(random() % sources);
        offsets.push_back(static_cast<int32_t>(picks[i] * lanes * sizeof(float)));
      }
      for (size_t i = 0; i < to.size(); ++i) to[i] = 7;
      const RepeatPixelsArgs args{from.data(),
                                  to.data(),
                                  offsets.data(),
                                  nullptr,
                                  static_cast<int64_t>(pixels * lanes),
                                  static_cast<int64_t>(stride * sizeof(float)),
                                  static_cast<int64_t>(rows)};
      repeat_pixels_kernel({isa})(&args);
      for (size_t i = 0; i < to.size(); ++i) {
        const size_t pixel = i % stride / lanes;
        const float expected = pixel < pixels ? from[picks[pixel] * lanes + i % lanes] : 7;
        ASSERT_EQ(to[i], expected) << "element " << i << " of " << pixels << " pixels in " << rows << " rows";
      }
    }
  }
}

void expect_picked(Isa isa, const std::vector<int32_t>& places, int64_t extent, std::mt19937& random) {
  const std::optional<ElementPicks> picks = element_picks(places, extent, isa);
  ASSERT_TRUE(picks) << places.size() << " of " << extent;
  const size_t rows = 1 + random() % 4, stride = places.size() + random() % 5;
  const bool at_border = random() % 2 == 0;
  GuardedFloats from(static_cast<size_t>(extent), at_border), to((rows - 1) * stride + places.size(), at_border);
  from.randomize(random, -1, 1);
  for (size_t i = 0; i < to.size(); ++i) to[i] = 7;
  const RepeatPixelsArgs args{from.data(),
                              to.data(),
                              picks->offsets.data(),
                              picks->order.data(),
                              static_cast<int64_t>(places.size()),
                              static_cast<int64_t>(stride * sizeof(float)),
                              static_cast<int64_t>(rows)};
  repeat_pixels_kernel({isa, true})(&args);
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t element = i % stride;
    ASSERT_EQ(to[i], element < places.size() ? from[static_cast<size_t>(places[element])] : 7)
        << "element " << i << " of " << places.size() << " from " << extent << " in " << rows << " rows";
  }
}

TEST(RepeatPixels, WritesEachPickedElementToEveryRow) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    const int64_t lanes = vector_lanes(isa);
    for (int64_t extent = lanes; extent < 6 * lanes; extent += 1 + static_cast<int64_t>(random() % 4)) {
      for (const double scale : {1.0, 1.3, 2.0, 2.5, 4.0, 8.0}) {
        std::vector<int32_t> places;
        const auto count = static_cast<int64_t>(static_cast<double>(extent) * scale);
        for (int64_t i = 0; i < count; ++i)
          places.push_back(
              std::min(static_cast<int32_t>(static_cast<double>(i) / scale), static_cast<int32_t>(extent) - 1));
        expect_picked(isa, places, extent, random);
        if (HasFatalFailure()) return;
      }
      // In any order, near each other.
      std::vector<int32_t> places;
      const auto count = lanes + static_cast<int64_t>(random() % 50);
      const auto first = static_cast<int32_t>(random() % static_cast<size_t>(extent - lanes + 1));
      for (int64_t i = 0; i < count; ++i)
        places.push_back(first + static_cast<int32_t>(random() % static_cast<size_t>(lanes)));
      expect_picked(isa, places, extent, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RepeatPixels, HasNoTableForRowsThatAreShortOrShrink) {
  for (const Isa isa : testing::isas_here()) {
    const int lanes = vector_lanes(isa);
    std::vector<int32_t> places;
    for (int i = 0; i < 2 * lanes; ++i) places.push_back(i / 2);
    EXPECT_TRUE(element_picks(places, lanes, isa));
    EXPECT_FALSE(element_picks(places, lanes - 1, isa)) << "a short source";
    EXPECT_FALSE(element_picks(std::span(places).first(static_cast<size_t>(lanes) - 1), lanes, isa))
        << "a short result";
    for (int i = 0; i < 2 * lanes; ++i) places[static_cast<size_t>(i)] = 2 * i;
    EXPECT_FALSE(element_picks(places, 4 * lanes, isa)) << "every second element";
  }
}

}  // namespace
}  // namespace lathe
