// Winograd's convolution in whole numbers: sums that are exactly those of plain loops.
#include <gtest/gtest.h>

#include <random>

#include "ops/winograd/winograd_int8_program.h"
#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"

namespace lathe {
namespace {

using testing::GuardedBytes;

struct WinogradCase {
  Isa isa = Isa::avx2;
  int64_t batch = 1, in_channels = 1, out_channels = 1, height = 6, width = 6;
  int64_t top = 0, left = 0, bottom = 0, right = 0;
  bool is_signed = false, has_weight_zeros = false;
  int32_t zero = 0;
  int64_t tile_group = 0;
  int threads = 1;
  bool makes_weights = false;

  int64_t out_height() const { return height + top + bottom - 2; }
  int64_t out_width() const { return width + left + right - 2; }
  friend std::ostream& operator<<(std::ostream& out, const WinogradCase& c) {
    return out << name_of(c.isa) << " " << c.batch << "x" << c.in_channels << "x" << c.height << "x" << c.width
               << " -> " << c.out_channels << " pads " << c.top << c.left << c.bottom << c.right
               << (c.is_signed ? " i8" : " u8") << " zero " << c.zero << (c.has_weight_zeros ? " weight zeros" : "")
               << " group " << c.tile_group << " threads " << c.threads << (c.makes_weights ? " makes weights" : "");
  }
};

ConvAxis axis_of(int64_t in, int64_t out, int64_t before) {
  ConvAxis axis;
  axis.in = in;
  axis.out = axis.out_extent = out;
  axis.taps = {{0, -before}, {1, 1 - before}, {2, 2 - before}};
  return axis;
}

class WinogradRun {
 public:
  WinogradRun(const WinogradCase& c, unsigned seed) : case_(c), lanes_(vector_lanes(c.isa)), random_(seed) {
    problem_.conv.isa = c.isa;
    problem_.conv.in_channels = c.in_channels;
    problem_.is_signed = c.is_signed;
    problem_.zero = c.zero;
    ConvProblem& shape = problem_.conv.shape;
    shape.batch = c.batch;
    shape.in_channels = (c.in_channels + 1) / 2;
    shape.out_channels = c.out_channels;
    shape.window_y = shape.window_x = 3;
    shape.lanes = static_cast<int>(lanes_);
    ConvShape axes;
    axes.y = axis_of(c.height, c.out_height(), c.top);
    axes.x = axis_of(c.width, c.out_width(), c.left);
    shape.phases = {axes};
    weights_.resize(static_cast<size_t>(c.out_channels * c.in_channels * 9));
    // Of many channels the largest weights together would not stay exact.
    constexpr int64_t kFewChannels = 50;
    for (uint8_t& weight : weights_) {
      weight = c.in_channels <= kFewChannels ? extreme_byte(true) : static_cast<uint8_t>(random_() % 128 - 64);
    }
    for (int64_t i = 0; i < c.out_channels; ++i) zeros_.push_back(c.has_weight_zeros ? int8_t(random_()) : 0);
  }

  void check() {
    const ByteMatrix rows{weights_.data(), true, case_.out_channels, case_.in_channels * 9, case_.in_channels * 9, 1};
    const ByteZeros zeros{zeros_.data(), DType::i32, case_.out_channels};
    ASSERT_TRUE(is_winograd_int8(problem_.conv.shape));
    ASSERT_TRUE(stays_exact(problem_, rows, zeros));
    problem_.fits_bytes = differences_fit_bytes(true, zeros);
    const WinogradInt8Program program(problem_, {case_.tile_group, case_.makes_weights}, case_.threads, {});
    const int64_t in_blocks = problem_.in_blocks(), out_blocks = problem_.conv.shape.out_blocks();
    const GuardedBytes source(bytes(case_.batch * in_blocks * lanes_ * case_.height * case_.width));
    const GuardedBytes packed(bytes(program.packed_bytes())), scratch(bytes(program.scratch_bytes()));
    const GuardedBytes init(bytes(out_blocks * lanes_ * 4));
    const GuardedBytes target(bytes(case_.batch * out_blocks * lanes_ * case_.out_height() * case_.out_width() * 4));
    for (size_t i = 0; i < source.size(); ++i) source.as<uint8_t>()[i] = extreme_byte(case_.is_signed);
    for (int64_t i = 0; i < out_blocks * lanes_; ++i) init.as<int32_t>()[i] = static_cast<int32_t>(random_() % 100000);
    program.pack(rows, zeros, packed.data());
    ConvInt8Arguments arguments;
    arguments.source = source.data();
    arguments.weights = packed.data();
    arguments.init = init.as<int32_t>();
    arguments.target = target.data();
    for (int part = 0; part < program.parts(); ++part) {
      for (int thread = 0; thread < case_.threads; ++thread) {
        program.run_part(part, arguments, scratch.as<char>(), thread);
      }
    }
    for (int64_t image = 0; image < case_.batch; ++image) {
      for (int64_t channel = 0; channel < case_.out_channels; ++channel) {
        compare(image, channel, source.as<uint8_t>(), init.as<int32_t>()[channel], target.as<int32_t>());
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  static size_t bytes(int64_t count) { return static_cast<size_t>(count); }
  // The ends of the range come up often.
  uint8_t extreme_byte(bool is_signed) {
    const auto any = static_cast<uint8_t>(random_());
    if (random_() % 2 == 0) return any;
    const bool is_largest = random_() % 4 != 0;
    if (is_signed) return is_largest ? 127 : 128;
    return is_largest ? 255 : 0;
  }

  void compare(int64_t image, int64_t channel, const uint8_t* source, int32_t init, const int32_t* target) {
    const int64_t out_blocks = problem_.conv.shape.out_blocks();
    const int64_t plane = case_.out_height() * case_.out_width() * lanes_;
    const int32_t* out = target + (image * out_blocks + channel / lanes_) * plane + channel % lanes_;
    for (int64_t y = 0; y < case_.out_height(); ++y) {
      for (int64_t x = 0; x < case_.out_width(); ++x) {
        ASSERT_EQ(out[(y * case_.out_width() + x) * lanes_], init + sum_at(image, channel, y, x, source))
            << "image " << image << " channel " << channel << " at " << y << ", " << x;
      }
    }
  }
  int64_t sum_at(int64_t image, int64_t channel, int64_t y, int64_t x, const uint8_t* source) const {
    int64_t sum = 0;
    for (int64_t in = 0; in < case_.in_channels; ++in) {
      const int64_t plane = case_.height * case_.width * lanes_;
      const uint8_t* from = source + (image * problem_.in_blocks() + in / lanes_) * plane + in % lanes_;
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t row = y + tap / 3 - case_.top, column = x + tap % 3 - case_.left;
        if (row < 0 || row >= case_.height || column < 0 || column >= case_.width) continue;
        const uint8_t byte = from[(row * case_.width + column) * lanes_];
        const int value = (case_.is_signed ? static_cast<int8_t>(byte) : byte) - case_.zero;
        const auto weight = static_cast<int8_t>(weights_[bytes((channel * case_.in_channels + in) * 9 + tap)]);
        sum += int64_t{value} * (weight - zeros_[bytes(channel)]);
      }
    }
    return sum;
  }

  const WinogradCase case_;
  const int64_t lanes_;
  std::mt19937 random_;
  WinogradInt8Problem problem_;
  std::vector<uint8_t> weights_;
  std::vector<int32_t> zeros_;
};

WinogradCase random_case(std::mt19937& random, Isa isa) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  WinogradCase c;
  c.isa = isa;
  c.batch = pick(1, 2);
  c.in_channels = pick(1, 50);
  c.out_channels = pick(1, 50);
  c.height = pick(3, 14);
  c.width = pick(3, 14);
  for (int64_t* pad : {&c.top, &c.left, &c.bottom, &c.right}) *pad = pick(0, 2);
  c.is_signed = pick(0, 1) == 1;
  c.has_weight_zeros = pick(0, 3) == 0;
  c.zero = c.is_signed ? pick(-128, 127) : pick(0, 255);
  if (pick(0, 2) == 0) c.zero = 0;
  if (pick(0, 3) == 0) {  // products are crossed
    c.in_channels = pick(256, 280);
    c.out_channels = pick(1, 20);
    c.batch = 1;
    c.has_weight_zeros = false;
  }
  c.tile_group = pick(0, 2) == 0 ? 0 : pick(1, 20);
  c.threads = pick(1, 3);
  c.makes_weights = pick(0, 1) == 1;
  return c;
}

TEST(WinogradInt8, SumsExactlyWhatPlainLoopsSum) {
  std::mt19937 random(17);
  for (const Isa isa : testing::int8_isas_here()) {
    for (int i = 0; i < 60; ++i) {
      const WinogradCase c = random_case(random, isa);
      SCOPED_TRACE(::testing::Message() << c);
      WinogradRun(c, random()).check();
      if (HasFatalFailure()) return;
    }
  }
}

// Of a picture of so many channels, with a border of one pixel.
WinogradInt8Problem plain_problem(Isa isa, int64_t channels, int64_t extent) {
  WinogradInt8Problem problem;
  problem.conv.isa = isa;
  problem.conv.in_channels = channels;
  problem.fits_bytes = true;
  ConvProblem& shape = problem.conv.shape;
  shape.in_channels = channels / group_of(has_vnni(isa) ? Int8Dot::u8s8 : Int8Dot::pairs);
  shape.out_channels = channels;
  shape.window_y = shape.window_x = 3;
  shape.lanes = vector_lanes(isa);
  ConvShape axes;
  axes.y = axes.x = axis_of(extent, extent, 1);
  shape.phases = {axes};
  return problem;
}

bool pays(Isa isa, int64_t channels, int64_t extent) {
  const Int8Dot dot = has_vnni(isa) ? Int8Dot::u8s8 : Int8Dot::pairs;
  return choose_winograd_int8(plain_problem(isa, channels, extent), dot, 1, {2, 8, 10, 40}).has_value();
}

// As measured on a Zen 5: 1.2 to 1.9 times as fast where it pays, 0.3 to 0.9 times elsewhere.
TEST(WinogradInt8, PaysBesideVnniOf256BitsFromThirtyTwoChannelsOn) {
  for (const int64_t channels : {32, 64, 128, 256}) EXPECT_TRUE(pays(Isa::avx2_vnni, channels, 28)) << channels;
  for (const int64_t extent : {14, 28, 56}) EXPECT_FALSE(pays(Isa::avx2_vnni, 16, extent)) << extent;
  for (const int64_t channels : {64, 128, 256, 512}) EXPECT_FALSE(pays(Isa::avx2_vnni, channels, 7)) << channels;
  EXPECT_TRUE(pays(Isa::avx2, 64, 7)) << "pairs take twice the instructions";
}

// As measured on a Zen 5: 384 channels of 14x14 pixels by Winograd take 27 % longer, in two groups that each read
// 10.6 MB of weights.
TEST(WinogradInt8, CountsTheWeightsOfEachGroup) {
  EXPECT_TRUE(pays(Isa::avx512_vnni, 256, 14));
  EXPECT_FALSE(pays(Isa::avx512_vnni, 384, 14));
}

// As measured on an Emerald Rapids: 256 channels of 14x14 pixels take 0.28 ms directly and 0.33 by Winograd.
TEST(WinogradInt8, LeavesManyChannelsOfSmallPicturesToXeonsOwnProducts) {
  const auto pays_there = [](int64_t channels, int64_t extent, int threads) {
    const WinogradInt8Problem problem = plain_problem(Isa::avx512_vnni, channels, extent);
    return choose_winograd_int8(problem, Int8Dot::u8s8, threads, kXeon).has_value();
  };
  EXPECT_TRUE(pays_there(128, 28, 1));
  for (const int threads : {1, 2}) EXPECT_FALSE(pays_there(256, 14, threads)) << threads;
}

// 4.7 MB of frequencies; cores that multiply twice a cycle wait for them.
TEST(WinogradInt8, MakesFrequenciesOfWeightsWhereMemoryIsSlowerThanThat) {
  const WinogradInt8Problem problem = plain_problem(Isa::avx512_vnni, 256, 14);
  const auto makes = [](const WinogradInt8Problem& p, int threads, const CoreRates& rates) {
    const auto plan = choose_winograd_int8(p, Int8Dot::u8s8, threads, rates);
    return plan && plan->makes_weights;
  };
  EXPECT_TRUE(makes(problem, 2, kZen5));
  EXPECT_FALSE(makes(problem, 1, kZen5));
  EXPECT_FALSE(makes(problem, 1, kZen4));
  EXPECT_FALSE(makes(problem, 2, kZen4));
  // Several groups of tiles would make them each.
  EXPECT_FALSE(makes(plain_problem(Isa::avx512_vnni, 256, 28), 2, kZen5));
  EXPECT_FALSE(makes(plain_problem(Isa::avx512_vnni, 1024, 14), 2, kZen5)) << "beyond L2";
  WinogradInt8Problem wide = problem;
  wide.fits_bytes = false;
  EXPECT_FALSE(makes(wide, 2, kZen5));
  const WinogradInt8Program made(problem, {0, true}, 2, {}), kept(problem, {0, false}, 2, {});
  EXPECT_EQ(made.packed_bytes(), 256 * 256 * 9);
  EXPECT_EQ(kept.packed_bytes(), 256 * 256 * 36 * 2);
}

TEST(WinogradInt8, KnowsWhenWeightsLessTheirZeroPointsAreBytes) {
  const int32_t none[] = {0, 0}, middle[] = {128, 128}, others[] = {0, 1};
  const auto zeros = [](const int32_t(&values)[2]) { return ByteZeros{values, DType::i32, 2}; };
  EXPECT_TRUE(differences_fit_bytes(true, {}));
  EXPECT_FALSE(differences_fit_bytes(false, {}));
  EXPECT_TRUE(differences_fit_bytes(true, zeros(none)));
  EXPECT_FALSE(differences_fit_bytes(true, zeros(others)));
  EXPECT_TRUE(differences_fit_bytes(false, zeros(middle)));
  EXPECT_FALSE(differences_fit_bytes(false, zeros(none)));
}

TEST(WinogradInt8, RefusesWeightsWhoseSumsMayNotComeOutExactly) {
  WinogradInt8Problem problem;
  const int64_t channels = 115;
  std::vector<uint8_t> weights(2 * channels * 9, 127);
  const ByteZeros none;
  const auto rows = [&](int64_t count) { return ByteMatrix{weights.data(), true, 1, count * 9, count * 9, 1}; };
  EXPECT_TRUE(stays_exact(problem, rows(channels), none));
  EXPECT_FALSE(stays_exact(problem, rows(channels + 1), none));
  const int32_t small[] = {35'000}, large[] = {36'000}, negative[] = {-(1 << 30)};
  EXPECT_TRUE(stays_exact(problem, rows(channels), none, small));
  EXPECT_FALSE(stays_exact(problem, rows(channels), none, large));
  EXPECT_FALSE(stays_exact(problem, rows(channels), none, negative));
  // Of both signs: the sums of either stay within the range, with a zero point at the end of the pixels' range.
  for (size_t i = 0; i < weights.size(); i += 2) weights[i] = 129;
  EXPECT_TRUE(stays_exact(problem, rows(2 * channels), none));
}

}  // namespace
}  // namespace lathe
