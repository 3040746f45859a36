// The kernel of integer convolutions against plain loops, with memory that ends at a guard page.
#include "jit/kernels/conv/conv_int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/base/cpu.h"
#include "tests/guarded_bytes.h"

namespace lathe {
namespace {

using testing::GuardedBytes;

struct Form {
  Isa isa;
  Int8Dot dot;
};
std::vector<Form> forms() {
  std::vector<Form> all = {{Isa::avx2, Int8Dot::pairs},
                           {Isa::avx2, Int8Dot::crossed},
                           {Isa::avx2, Int8Dot::u8s7},
                           {Isa::avx2, Int8Dot::u8s8_halved}};
  if (has_avx512(usable_isa())) all.push_back({Isa::avx512, Int8Dot::pairs});
  for (const Isa isa : {Isa::avx2_vnni, Isa::avx512_vnni})
    if (is_usable(isa)) all.push_back({isa, Int8Dot::u8s8});
  return all;
}

struct Case {
  int64_t height, width;
  int window;        // in both directions, with the padding that keeps the size
  int blocks, tail;  // whole input blocks; groups of a last one
  int out_blocks, cols;
  int ahead = 0;
};

class TileTest {
 public:
  TileTest(const Case& c, const Form& form, std::mt19937& random)
      : c_(c),
        lanes_(vector_lanes(form.isa)),
        group_(group_of(form.dot)),
        groups_(lanes_ / group_),
        source_(static_cast<size_t>((c.blocks + (c.tail > 0)) * block_bytes())),
        weights_(static_cast<size_t>(int64_t{steps()} * c.out_blocks * lanes_ * 4)),
        init_(static_cast<size_t>(c.out_blocks * lanes_ * 4)),
        terms_(static_cast<size_t>(c.height * c.width * 4)),
        target_(static_cast<size_t>(c.out_blocks * plane_bytes())) {
    plan_.isa = form.isa;
    plan_.dot = form.dot;
    plan_.blocks = c.out_blocks;
    plan_.groups = groups_;
    plan_.tail = c.tail;
    plan_.ahead = c.ahead;
    plan_.prefetch_lines = 1;
    form.dot == Int8Dot::u8s8_halved ? fill_mostly_small(source_, random) : fill(source_, random);
    form.dot == Int8Dot::u8s7 ? fill_with_seven_bits(weights_, random) : fill(weights_, random);
    if (form.dot == Int8Dot::u8s8_halved && random() % 2 == 0) fill_with_extremes(weights_, random);
    for (int i = 0; i < c.out_blocks * lanes_; ++i) init_.as<int32_t>()[i] = 1000 * i - 7;
    for (int64_t pixel = 0; pixel < c.height * c.width; ++pixel) terms_.as<int32_t>()[pixel] = term_of(pixel);
  }

  // Crossed products have one tap, and groups in twos.
  static bool is_possible(const Case& c, const Form& form) {
    // Two sets of sums.
    if (c.ahead > 0 && 2 * c.out_blocks * c.cols >= vector_registers(form.isa)) return false;
    if (form.dot == Int8Dot::u8s8_halved) {
      return fits_registers({.isa = form.isa, .dot = form.dot, .blocks = c.out_blocks, .ahead = c.ahead}, c.cols);
    }
    return form.dot != Int8Dot::crossed || (c.window == 1 && c.tail % 2 == 0 && c.ahead == 0);
  }

  void check() {
    ConvShape shape;
    shape.lanes = groups_;
    shape.y = axis(c_.height);
    shape.x = axis(c_.width);
    const ConvTiling tiling = make_conv_tiling(shape, 1, c_.cols, lanes_);
    const ConvInt8Kernels kernels = ConvInt8Kernels::make(plan_, tiling.shapes);
    large_ = large_of(tiling);
    for (size_t i = 0; i < tiling.tiles.size();) i += run(kernels, tiling.tiles, i);
    for (int channel = 0; channel < c_.out_blocks * lanes_; ++channel) {
      for (int64_t pixel = 0; pixel < c_.height * c_.width; ++pixel) {
        const int64_t at = (channel / lanes_ * c_.height * c_.width + pixel) * lanes_ + channel % lanes_;
        ASSERT_EQ(target_.as<int32_t>()[at], expected(channel, pixel)) << "channel " << channel << " pixel " << pixel;
      }
    }
  }

 private:
  int64_t block_bytes() const { return c_.height * c_.width * groups_ * 4; }
  int64_t plane_bytes() const { return c_.height * c_.width * lanes_ * 4; }
  int taps() const { return c_.window * c_.window; }
  int steps() const { return (c_.blocks * groups_ + c_.tail) * taps(); }

  ConvAxis axis(int64_t extent) const {
    ConvAxis axis{extent, extent, 1, {}, extent};
    for (int k = 0; k < c_.window; ++k) axis.taps.push_back({k, k - c_.window / 2});
    return axis;
  }

  void fill(const GuardedBytes& memory, std::mt19937& random) const {
    const bool is_wide = group_ == 2;
    const bool is_extreme = random() % 2 == 0;
    for (size_t i = 0; i < memory.size() / (is_wide ? 2 : 1); ++i) {
      if (is_wide) {
        const int value = is_extreme ? (random() % 2 == 0 ? 0 : 510) : static_cast<int>(random() % 511);
        memory.as<int16_t>()[i] = static_cast<int16_t>(value - 255);
      } else {
        memory.as<uint8_t>()[i] = static_cast<uint8_t>(random());
      }
    }
  }

  static void fill_with_seven_bits(const GuardedBytes& memory, std::mt19937& random) {
    const bool is_extreme = random() % 2 == 0;
    for (size_t i = 0; i < memory.size(); ++i) {
      const int value = is_extreme ? (random() % 2 == 0 ? 0 : 128) : static_cast<int>(random() % 129);
      memory.as<int8_t>()[i] = static_cast<int8_t>(value - 64);
    }
  }

  static void fill_with_extremes(const GuardedBytes& memory, std::mt19937& random) {
    for (size_t i = 0; i < memory.size(); ++i) memory.as<int8_t>()[i] = random() % 8 == 0 ? 127 : -128;
  }

  // Small ones are often small enough for four, and often just so.
  static void fill_mostly_small(const GuardedBytes& memory, std::mt19937& random) {
    const int most = random() % 2 == 0 ? 128 : 255, large_of = 1 + static_cast<int>(random() % 40);
    const unsigned small = random() % 2 == 0 ? 64 : 127;
    const bool is_extreme = random() % 2 == 0;
    for (size_t i = 0; i < memory.size(); ++i) {
      const bool is_large = random() % static_cast<unsigned>(large_of * large_of) == 0;
      const auto less = static_cast<int>(is_extreme ? small : random() % (small + 1));
      memory.as<uint8_t>()[i] = static_cast<uint8_t>(is_large ? most : less);
    }
  }

  // What is large in each input block and tile, of any pixel that it reads.
  std::vector<LargeBytes> large_of(const ConvTiling& tiling) const {
    std::vector<LargeBytes> large;
    for (int block = 0; block < c_.blocks + (c_.tail > 0); ++block) {
      for (const ConvTile& tile : tiling.tiles) {
        LargeBytes what = LargeBytes::none;
        for (const ConvTapRun& tap : tiling.shapes[static_cast<size_t>(tile.shape)].taps) {
          for (const ConvUse& use : tap.uses) {
            const uint8_t* pixel = source_.as<uint8_t>() + block * block_bytes() + tile.source + use.source;
            for (int i = 0; i < tap.run * groups_ * 4; i += 2) {
              const int sum = pixel[i] + pixel[i + 1], other = i % 8 < 4 ? i + 4 : i - 4;
              if (sum + pixel[other] + pixel[other + 1] > kMostOfNeighbours) what = std::max(what, LargeBytes::fours);
              if (sum > kMostOfNeighbours) what = LargeBytes::neighbours;
            }
          }
        }
        large.push_back(what);
      }
    }
    return large;
  }

  // As many tiles of one row as are alike, in one call.
  size_t run(const ConvInt8Kernels& kernels, const std::vector<ConvTile>& tiles, size_t first) {
    ConvInt8Call call;
    call.source = source_.as<char>() + tiles[first].source;
    call.weights = weights_.as<char>();
    call.init = init_.as<int32_t>();
    call.terms = terms_.as<int32_t>() + tiles[first].source / (groups_ * 4);
    call.terms_step = int64_t{c_.cols} * 4;
    call.large = large_.data() + first;
    call.large_block_bytes = static_cast<int64_t>(tiles.size());
    call.target = target_.as<char>() + tiles[first].target;
    call.prefetch = call.weights;
    call.blocks = c_.blocks;
    call.source_block_bytes = block_bytes();
    call.target_block_bytes = plane_bytes();
    call.source_step = int64_t{c_.cols} * groups_ * 4;
    call.target_step = int64_t{c_.cols} * lanes_ * 4;
    size_t count = 1;
    const auto follows = [&](size_t i) {
      return tiles[i].shape == tiles[first].shape && tiles[i].source - tiles[i - 1].source == call.source_step;
    };
    while (first + count < tiles.size() && follows(first + count)) ++count;
    call.tiles = static_cast<int64_t>(count);
    kernels.entry(tiles[first].shape)(&call);
    EXPECT_EQ(call.tiles, 0);
    return count;
  }

  int64_t product(int64_t source, int64_t weight) const {
    int64_t sum = 0;
    for (int i = 0; i < group_; ++i) {
      sum += group_ == 2 ? int64_t{source_.as<int16_t>()[source * 2 + i]} * weights_.as<int16_t>()[weight * 2 + i]
                         : int64_t{source_.as<uint8_t>()[source * 4 + i]} * weights_.as<int8_t>()[weight * 4 + i];
    }
    return sum;
  }

  // What crossed products have in them besides: of two groups of the weights, and of a pixel of the source.
  int64_t weights_term(int64_t weight, int64_t next_weight) const {
    const auto* b = weights_.as<int16_t>();
    return b[weight * 2] * b[next_weight * 2] + b[weight * 2 + 1] * b[next_weight * 2 + 1];
  }
  int32_t term_of(int64_t pixel) const {
    int64_t sum = 0;
    for (int block = 0; block < c_.blocks + (c_.tail > 0); ++block) {
      const int16_t* a = source_.as<int16_t>() + (block * c_.height * c_.width + pixel) * groups_ * 2;
      for (int group = 0; group + 1 < (block < c_.blocks ? groups_ : c_.tail); group += 2) {
        for (int i = 0; i < 2; ++i) sum += a[group * 2 + i] * a[group * 2 + 2 + i];
      }
    }
    return static_cast<int32_t>(sum);
  }

  int64_t expected(int channel, int64_t pixel) const {
    int64_t sum = init_.as<int32_t>()[channel], weights = 0;
    for (int block = 0; block < c_.blocks + (c_.tail > 0); ++block) {
      const int groups = block < c_.blocks ? groups_ : c_.tail;
      for (int tap = 0; tap < taps(); ++tap, weights += groups) {
        const int64_t y = pixel / c_.width + tap / c_.window - c_.window / 2;
        const int64_t x = pixel % c_.width + tap % c_.window - c_.window / 2;
        if (y < 0 || y >= c_.height || x < 0 || x >= c_.width) continue;
        for (int group = 0; group < groups; ++group) {
          const int64_t source = ((block * c_.height + y) * c_.width + x) * groups_ + group;
          const int64_t row = c_.out_blocks * lanes_, weight = (weights + group) * row + channel;
          sum += product(source, weight);
          if (plan_.dot == Int8Dot::crossed && group % 2 == 0) sum += weights_term(weight, weight + row);
        }
      }
    }
    return sum;
  }

  const Case c_;
  const int lanes_, group_, groups_;
  ConvInt8Plan plan_;
  std::vector<LargeBytes> large_;
  const GuardedBytes source_, weights_, init_, terms_, target_;
};

TEST(ConvInt8, SumsWhatPlainLoopsSum) {
  const Case cases[] = {
      {.height = 1, .width = 13, .window = 1, .blocks = 3, .tail = 0, .out_blocks = 1, .cols = 5},
      {.height = 4, .width = 9, .window = 3, .blocks = 2, .tail = 1, .out_blocks = 2, .cols = 3},
      {.height = 1, .width = 40, .window = 1, .blocks = 1, .tail = 2, .out_blocks = 1, .cols = 4},
      {.height = 1, .width = 26, .window = 1, .blocks = 4, .tail = 2, .out_blocks = 2, .cols = 4},
      {.height = 3, .width = 7, .window = 1, .blocks = 1, .tail = 0, .out_blocks = 3, .cols = 2},
      {.height = 5, .width = 31, .window = 3, .blocks = 4, .tail = 1, .out_blocks = 1, .cols = 10},
      {.height = 2, .width = 5, .window = 1, .blocks = 2, .tail = 2, .out_blocks = 4, .cols = 1},
      {.height = 1, .width = 25, .window = 1, .blocks = 7, .tail = 2, .out_blocks = 1, .cols = 12},
      {.height = 1, .width = 40, .window = 1, .blocks = 2, .tail = 0, .out_blocks = 1, .cols = 5, .ahead = 2},
      {.height = 1, .width = 24, .window = 1, .blocks = 5, .tail = 0, .out_blocks = 2, .cols = 2, .ahead = 2},
      {.height = 1, .width = 3, .window = 1, .blocks = 5, .tail = 0, .out_blocks = 1, .cols = 3, .ahead = 1},
      {.height = 4, .width = 14, .window = 3, .blocks = 3, .tail = 0, .out_blocks = 1, .cols = 3, .ahead = 2},
      {.height = 1, .width = 30, .window = 1, .blocks = 3, .tail = 0, .out_blocks = 2, .cols = 7, .ahead = 2},
      {.height = 1, .width = 22, .window = 1, .blocks = 4, .tail = 0, .out_blocks = 4, .cols = 3, .ahead = 4},
  };
  std::mt19937 random(5);
  for (const Case& c : cases) {
    for (const Form& form : forms()) {
      if (!TileTest::is_possible(c, form)) continue;
      SCOPED_TRACE(::testing::Message() << name_of(form.isa) << " " << c.height << "x" << c.width << " window "
                                        << c.window << " ahead " << c.ahead);
      TileTest(c, form, random).check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ConvInt8, RefusesTilesThatNeedTooManyRegisters) {
  ConvInt8Plan plan;
  plan.isa = Isa::avx2;
  plan.blocks = 2;
  EXPECT_TRUE(fits_registers(plan, 6));
  EXPECT_FALSE(fits_registers(plan, 7));
  plan.ahead = 1;
  EXPECT_TRUE(fits_registers(plan, 3));
  EXPECT_FALSE(fits_registers(plan, 4));
  plan.dot = Int8Dot::u8s8;
  EXPECT_FALSE(fits_registers(plan, 1));
  plan.dot = Int8Dot::crossed;
  EXPECT_FALSE(fits_registers(plan, 1));
  plan.ahead = 0;
  EXPECT_TRUE(fits_registers(plan, 4));
  EXPECT_FALSE(fits_registers(plan, 5));
  plan.tail = 1;
  EXPECT_FALSE(fits_registers(plan, 4));
  plan.dot = Int8Dot::u8s8_halved;
  EXPECT_TRUE(fits_registers(plan, 5));
  EXPECT_FALSE(fits_registers(plan, 6));
  plan.ahead = 1;
  EXPECT_FALSE(fits_registers(plan, 1));
}

TEST(ConvInt8, RefusesToCrossProductsThatLackTaps) {
  ConvInt8Plan plan;
  plan.isa = Isa::avx2;
  plan.dot = Int8Dot::crossed;
  ConvTileShape shape;
  shape.pixels = 2;
  shape.taps_in_window = 1;
  shape.taps = {{0, 1, {{0, 0}, {1, 16}}}};
  shape.stores = {0, 32};
  EXPECT_NO_THROW(ConvInt8Kernels::make(plan, std::span(&shape, 1)));
  shape.taps_in_window = 2;
  EXPECT_THROW(ConvInt8Kernels::make(plan, std::span(&shape, 1)), JitError);
  shape.taps.push_back({1, 1, {{0, 16}, {1, 32}}});
  EXPECT_NO_THROW(ConvInt8Kernels::make(plan, std::span(&shape, 1)));
  shape.taps[1].uses.pop_back();  // of pixel 1 it is beyond the border
  EXPECT_THROW(ConvInt8Kernels::make(plan, std::span(&shape, 1)), JitError);
}

}  // namespace
}  // namespace lathe
