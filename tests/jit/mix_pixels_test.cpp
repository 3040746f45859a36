#include "jit/kernels/resize/mix_pixels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::GuardedBytes;
using testing::PageBorder;

struct MixedPixels {
  int terms;
  bool blends;
  MixElement from, to;
  int64_t sources, pixels, elements, gap, rows;  // gap: elements between two pixels of the result
  int64_t alike = 1;                             // pixels that are made of the same ones, one behind the other
};

std::string described(const MixedPixels& c) {
  return std::to_string(c.terms) + (c.blends ? " blended " : " terms ") + name_of(c.from) + " to " + name_of(c.to) +
         ", " + std::to_string(c.pixels) + " of " + std::to_string(c.sources) + " with " + std::to_string(c.elements) +
         " elements and " + std::to_string(c.gap) + " between, " + std::to_string(c.rows) + " rows, " +
         std::to_string(c.alike) + " alike";
}

MixTerms random_terms(const MixedPixels& c, std::mt19937& random) {
  MixTerms mix{.terms = c.terms, .blends = c.blends, .places = {}, .weights = {}};
  std::uniform_real_distribution<float> weight(-0.5F, 1);
  for (int64_t i = 0; i < c.pixels; ++i) {
    for (int term = 0; term < c.terms; ++term) {
      const bool repeats = i % c.alike != 0;
      mix.places.push_back(repeats ? mix.places[mix.places.size() - static_cast<size_t>(c.terms)]
                                   : static_cast<int32_t>(random() % static_cast<size_t>(c.sources)));
      mix.weights.push_back(c.blends && term == 1 ? 1 - mix.weights.back() : weight(random));
    }
  }
  return mix;
}

double element_at(const GuardedBytes& bytes, MixElement type, int64_t i) {
  if (type == MixElement::f32) return static_cast<double>(bytes.as<float>()[i]);
  return type == MixElement::u8 ? bytes.as<uint8_t>()[i] : bytes.as<int8_t>()[i];
}

void fill(const GuardedBytes& bytes, MixElement type, int64_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-100, 100);
  for (int64_t i = 0; i < count; ++i) {
    if (type == MixElement::f32) {
      bytes.as<float>()[i] = uniform(random);
    } else {
      bytes.as<uint8_t>()[i] = static_cast<uint8_t>(random());
    }
  }
}

void expect_sum(double got, double sum, double magnitude, MixElement type) {
  const double error = (magnitude + std::abs(sum)) * 8 * 6e-8;
  if (type == MixElement::f32) {
    EXPECT_NEAR(got, sum, error);
    return;
  }
  // The integer part, modulo 256; what is nearly an integer may be one.
  const auto byte_of = [&](double value) {
    const auto bits = static_cast<uint8_t>(static_cast<int32_t>(std::trunc(value)));
    return static_cast<double>(type == MixElement::u8 ? bits : static_cast<int8_t>(bits));
  };
  const double slack = 1.0 / 4096;
  EXPECT_TRUE(got == byte_of(sum) || got == byte_of(sum + slack) || got == byte_of(sum - slack))
      << got << " for " << sum;
}

void expect_mixed(Isa isa, const MixedPixels& c, std::mt19937& random) {
  const MixTerms mix = random_terms(c, random);
  const int64_t from_pixel = c.elements * bytes_of(c.from), to_pixel = (c.elements + c.gap) * bytes_of(c.to);
  const int64_t from_row = c.sources * from_pixel, to_row = c.pixels * to_pixel;
  const PageBorder border = random() % 2 == 0 ? PageBorder::before : PageBorder::behind;
  const int64_t last_gap = c.gap * bytes_of(c.to);
  const GuardedBytes from(static_cast<size_t>(c.rows * from_row), 0xa5, border);
  const GuardedBytes to(static_cast<size_t>(c.rows * to_row - last_gap), 0xa5, border);
  fill(from, c.from, c.rows * c.sources * c.elements, random);
  std::vector<int64_t> offsets;
  for (const int32_t place : mix.places) offsets.push_back(place * from_pixel);
  const std::vector<int32_t> alike = mix.alike();
  const MixPixelsArgs args{from.data(), to.data(), offsets.data(), mix.weights.data(), alike.data(), c.pixels,
                           c.elements,  to_pixel,  c.rows,         from_row,           to_row};
  mix_pixels_kernel(mix_pixels_plan(isa, mix, c.from, c.to, c.elements, to_pixel))(&args);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t pixel = 0; pixel < c.pixels; ++pixel) {
      const int64_t first = (row * c.pixels + pixel) * (c.elements + c.gap);
      for (int64_t i = 0; i < c.elements; ++i) {
        double sum = 0, magnitude = 0;
        for (int term = 0; term < c.terms; ++term) {
          const auto at = static_cast<size_t>(pixel * c.terms + term);
          const double value = element_at(from, c.from, (row * c.sources + mix.places[at]) * c.elements + i);
          sum += value * static_cast<double>(mix.weights[at]);
          magnitude += std::abs(value) * (1 + std::abs(static_cast<double>(mix.weights[at])));
        }
        expect_sum(element_at(to, c.to, first + i), sum, magnitude, c.to);
      }
      const bool is_last = row + 1 == c.rows && pixel + 1 == c.pixels;
      for (int64_t i = is_last ? 0 : last_gap; i-- > 0;) {
        ASSERT_EQ(to.as<uint8_t>()[first * bytes_of(c.to) + from_pixel / bytes_of(c.from) * bytes_of(c.to) + i], 0xa5);
      }
      ASSERT_FALSE(::testing::Test::HasFailure()) << described(c) << ": pixel " << pixel << " of row " << row;
    }
  }
  ASSERT_TRUE(from.is_untouched_outside() && to.is_untouched_outside()) << described(c);
}

TEST(MixPixels, AddsUpWeightedPixelsOfAnyLength) {
  std::mt19937 random(1);
  constexpr MixElement kTypes[] = {MixElement::f32, MixElement::u8, MixElement::i8};
  for (const Isa isa : testing::isas_here()) {
    for (int round = 0; round < 1500; ++round) {
      MixedPixels c{};
      c.terms = 1 + static_cast<int>(random() % 11);
      c.blends = c.terms == 2 && random() % 2 == 0;
      c.from = kTypes[random() % 5 % 3];
      c.to = c.from == MixElement::f32 || random() % 2 == 0 ? kTypes[random() % 3] : c.from;
      c.sources = 1 + static_cast<int64_t>(random() % 6);
      c.pixels = 1 + static_cast<int64_t>(random() % 13);
      c.elements = 1 + static_cast<int64_t>(random() % (random() % 4 == 0 ? 300 : 70));
      c.gap = static_cast<int64_t>(random() % 3) * static_cast<int64_t>(random() % 7);
      c.rows = 1 + static_cast<int64_t>(random() % 3);
      c.alike = 1 + static_cast<int64_t>(random() % 5);
      expect_mixed(isa, c, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MixPixels, BlendsEqualPixelsToThemselves) {
  for (const Isa isa : testing::isas_here()) {
    std::vector<float> from(64, 0.1F), to(32);
    const int64_t offsets[] = {0, 128};
    const float weights[] = {0.7F, 0.3F};
    const int32_t alike[] = {1};
    const MixTerms mix{.terms = 2, .blends = true, .places = {0, 1}, .weights = {0.7F, 0.3F}};
    const MixPixelsArgs args{from.data(), to.data(), offsets, weights, alike, 1, 32, 0, 1, 0, 0};
    mix_pixels_kernel(mix_pixels_plan(isa, mix, MixElement::f32, MixElement::f32, 32, 128))(&args);
    for (const float value : to) EXPECT_EQ(value, 0.1F);
  }
}

TEST(MixPixels, RefusesPlansThatCannotBe) {
  EXPECT_FALSE((MixPixelsPlan{.terms = 0}.is_valid()));
  EXPECT_FALSE((MixPixelsPlan{.terms = 3, .blends = true}.is_valid()));
  EXPECT_FALSE((MixPixelsPlan{.isa = Isa::avx2, .elements = 7}.is_valid()));
  EXPECT_FALSE((MixPixelsPlan{.isa = Isa::avx2, .elements = 65}.is_valid()));
  EXPECT_FALSE((MixPixelsPlan{.alike = 2}.is_valid()));
  EXPECT_THROW(mix_pixels_kernel({.terms = 0}), JitError);
}

}  // namespace
}  // namespace lathe
