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
                                  static_cast<int64_t>(pixels),
                                  static_cast<int64_t>(stride * sizeof(float)),
                                  static_cast<int64_t>(rows)};
      repeat_pixels_kernel(isa)(&args);
      for (size_t i = 0; i < to.size(); ++i) {
        const size_t pixel = i % stride / lanes;
        const float expected = pixel < pixels ? from[picks[pixel] * lanes + i % lanes] : 7;
        ASSERT_EQ(to[i], expected) << "element " << i << " of " << pixels << " pixels in " << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace lathe
