#include "src/base/half_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "src/base/half.h"

namespace lathe {
namespace {

constexpr int64_t kCodes = 0x10000;

struct Format {
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  void (*widen)(const uint16_t*, int64_t, float*) noexcept;
  void (*narrow)(const float*, int64_t, uint16_t*) noexcept;
};
constexpr Format kFormats[] = {{half_to_float, float_to_half, halves_to_floats, floats_to_halves},
                               {bfloat_to_float, float_to_bfloat, bfloats_to_floats, floats_to_bfloats}};

TEST(HalfRows, WidenEveryCodeAsOneByOne) {
  std::vector<uint16_t> codes(kCodes);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  for (const Format& format : kFormats) {
    std::vector<float> floats(kCodes);
    format.widen(codes.data(), kCodes, floats.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      const float expected = format.to_float(codes[i]);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(floats[i]) : floats[i] == expected) << "code " << i;
    }
  }
}

// Numbers, the middles between neighbours, and what lies next to these.
TEST(HalfRows, NarrowAsOneByOne) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Format& format : kFormats) {
    std::vector<float> floats;
    for (uint32_t code = 0; code + 1 < kCodes; ++code) {
      const float low = format.to_float(static_cast<uint16_t>(code)),
                  high = format.to_float(static_cast<uint16_t>(code + 1));
      if (std::isnan(low) || std::isnan(high)) continue;
      const float middle = low + (high - low) / 2;
      for (const float value : {low, middle, std::nextafter(middle, kInfinity), std::nextafter(middle, -kInfinity)})
        floats.push_back(value);
    }
    std::vector<uint16_t> codes(floats.size());
    format.narrow(floats.data(), std::ssize(floats), codes.data());
    for (size_t i = 0; i < floats.size(); ++i) {
      const uint16_t expected = format.from_float(floats[i]);
      if (std::isnan(floats[i])) {
        ASSERT_TRUE(std::isnan(format.to_float(codes[i])));
      } else {
        ASSERT_EQ(codes[i], expected) << floats[i];
      }
    }
  }
}

TEST(HalfRows, WriteNothingBehindAnyLength) {
  for (const Format& format : kFormats) {
    for (int64_t count = 0; count < 40; ++count) {
      const auto size = static_cast<size_t>(count);
      std::vector<float> floats(size, 1.5F), widened(size + 1, -1.0F);
      std::vector<uint16_t> halves(size + 1, 0xABCD);
      format.narrow(floats.data(), count, halves.data());
      format.widen(halves.data(), count, widened.data());
      EXPECT_EQ(halves.back(), 0xABCD);
      EXPECT_EQ(widened.back(), -1.0F);
      EXPECT_EQ(std::vector<float>(widened.begin(), widened.end() - 1), floats);
    }
  }
}

}  // namespace
}  // namespace lathe
