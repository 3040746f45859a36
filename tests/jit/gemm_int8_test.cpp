#include "jit/kernels/gemm/gemm_int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::GuardedBytes;
using testing::int8_isas_here;

struct TileCase {
  GemmInt8TilePlan plan;
  int64_t groups = 0, tiles = 1, tail_lanes = 0, gap = 0;  // gap: bytes between rows, a multiple of 4
};

std::ostream& operator<<(std::ostream& out, const TileCase& test) {
  return out << test.plan.key() << " groups=" << test.groups << " tiles=" << test.tiles << " tail=" << test.tail_lanes
             << " gap=" << test.gap;
}

// The extreme values come up often: sums must not saturate anywhere.
int random_byte(std::mt19937& random, int low, int high) {
  const int kind = std::uniform_int_distribution<int>(0, 3)(random);
  if (kind == 0) return low;
  if (kind == 1) return high;
  return std::uniform_int_distribution<int>(low, high)(random);
}

class TileBench {
 public:
  TileBench(const TileCase& test, unsigned seed)
      : test_(test),
        lanes_(vector_lanes(test.plan.isa)),
        rows_(test.plan.rows * test.tiles),
        columns_((test.plan.vecs - (test.plan.masked ? 1 : 0)) * lanes_ + test.tail_lanes),
        out_bytes_(bits_of(test.plan.output()) / 8),
        a_stride_(test.groups * 4 + test.gap),
        c_stride_(columns_ * out_bytes_ + test.gap),
        a_(static_cast<size_t>((rows_ - 1) * a_stride_ + test.groups * 4)),
        b_(static_cast<size_t>(test.groups * test.plan.vecs * lanes_ * 4)),
        c_(static_cast<size_t>((rows_ - 1) * c_stride_ + columns_ * out_bytes_)),
        column_init_(static_cast<size_t>(test.plan.vecs * lanes_ * 4)),
        row_init_(static_cast<size_t>(rows_ * 4)),
        scale_(static_cast<size_t>(columns_ * 4)),
        residual_(static_cast<size_t>((rows_ - 1) * (columns_ + test.gap) + columns_)),
        random_(seed) {
    fill(a_, has_signed_a(), 128);
    fill(b_, has_signed_b(), most_of_b());
    std::uniform_int_distribution<int32_t> init(-100000, 100000);
    for (int64_t i = 0; i < test.plan.vecs * lanes_; ++i) column_init_.as<int32_t>()[i] = init(random_);
    for (int64_t i = 0; i < rows_; ++i) row_init_.as<int32_t>()[i] = init(random_);
    for (int64_t i = 0; i < columns_; ++i) {
      scale_.as<float>()[i] = std::uniform_real_distribution<float>(0.5e-4F, 2e-4F)(random_);
    }
    for (size_t i = 0; i < residual_.size(); ++i) residual_.as<uint8_t>()[i] = static_cast<uint8_t>(random_());
  }

  void run(const GemmInt8Tile& kernel) {
    GemmInt8TileArgs args = {};
    args.a = a_.data();
    args.b = b_.data();
    args.c = c_.data();
    args.k_groups = test_.groups;
    args.tiles = test_.tiles;
    args.a_stride_bytes = a_stride_;
    args.c_stride_bytes = c_stride_;
    args.column_init = column_init_.as<int32_t>();
    args.row_init = row_init_.as<int32_t>();
    args.prefetch = b_.data();
    args.tail_lanes = test_.tail_lanes;
    args.inputs[0] = scale_.data();
    args.inputs[1] = residual_.data();
    args.input_stride_bytes[1] = columns_ + test_.gap;
    args.inputs[2] = residual_.data();
    args.input_stride_bytes[2] = 1;
    const std::vector<LargeBytes> large = large_blocks();
    args.large = large.data();
    args.large_tile_bytes = static_cast<int64_t>(large.size()) / test_.tiles;
    kernel(&args);
  }

  void check() const {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < columns_; ++column) ASSERT_NO_FATAL_FAILURE(check_one(row, column));
      if (row + 1 == rows_) break;
      for (int64_t i = columns_ * out_bytes_; i < c_stride_; ++i) {
        ASSERT_EQ(c_.as<uint8_t>()[row * c_stride_ + i], 0xa5) << "written behind row " << row;
      }
    }
  }

 private:
  bool has_signed_a() const {
    const Int8Dot dot = test_.plan.dot;
    return dot == Int8Dot::s8u8 || dot == Int8Dot::s8s8 || dot == Int8Dot::s8u8_halved;
  }
  bool has_signed_b() const {
    const Int8Dot dot = test_.plan.dot;
    return dot == Int8Dot::u8s8 || (multiplies_in_16_bits(dot) && dot != Int8Dot::s8u8_halved);
  }
  int most_of_b() const {
    if (!multiplies_in_16_bits(test_.plan.dot)) return 128;
    if (is_halved(test_.plan.dot)) return 128;
    return test_.plan.dot == Int8Dot::u8s7 ? kMostOfSevenBits : kMostBesideSigns;
  }
  bool are_large(const void* neighbours) const {
    const int64_t first = value(neighbours, 0, has_signed_a()), second = value(neighbours, 1, has_signed_a());
    if (!has_signed_a()) return first + second > kMostOfNeighbours;
    const int64_t above = std::max<int64_t>(first, 0) + std::max<int64_t>(second, 0);
    return std::max(above, above - first - second) > kMostOfSignedNeighbours;
  }
  bool are_large_fours(const uint8_t* a) const {
    return !has_signed_a() && std::max(a[0] + a[1] + a[4] + a[5], a[2] + a[3] + a[6] + a[7]) > kMostOfNeighbours;
  }
  // What is large in each k_unroll groups of each row tile.
  std::vector<LargeBytes> large_blocks() const {
    std::vector<LargeBytes> large;
    if (!is_halved(test_.plan.dot)) return large;
    for (int64_t first = 0; first < rows_; first += test_.plan.rows) {
      for (int64_t g = 0; g < test_.groups; g += test_.plan.k_unroll) {
        const int64_t end = std::min<int64_t>(test_.groups, g + test_.plan.k_unroll);
        LargeBytes what = LargeBytes::none;
        for (int64_t row = first; row < first + test_.plan.rows; ++row) {
          const char* a = a_.as<char>() + row * a_stride_;
          for (int64_t i = g; i + 1 < end; i += 2) {
            if (are_large_fours(reinterpret_cast<const uint8_t*>(a) + i * 4)) what = std::max(what, LargeBytes::fours);
          }
          for (int64_t i = g * 4; i < end * 4; i += 2) {
            if (are_large(a + i)) what = LargeBytes::neighbours;
          }
        }
        large.push_back(what);
      }
    }
    return large;
  }
  // `most`: of signed bytes, in size.
  void fill(const GuardedBytes& bytes, bool is_signed, int most) {
    if (is_wide(test_.plan.dot)) {
      for (size_t i = 0; i < bytes.size() / 2; ++i) {
        bytes.as<int16_t>()[i] = static_cast<int16_t>(random_byte(random_, -255, 255));
      }
      return;
    }
    const bool is_mostly_small = is_halved(test_.plan.dot) && random_() % 2 == 0;
    const int small = random_() % 2 == 0 ? 64 : 128;  // fours of the former are small
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool is_small = is_mostly_small && random_() % 50 != 0;
      const int most_signed = is_small ? 64 : most;
      bytes.as<uint8_t>()[i] =
          static_cast<uint8_t>(is_signed ? random_byte(random_, -most_signed, std::min(most_signed, 127))
                                         : random_byte(random_, 0, is_small ? small : 255));
    }
  }
  int64_t value(const void* lane, int i, bool is_signed) const {
    if (is_wide(test_.plan.dot)) return static_cast<const int16_t*>(lane)[i];
    const uint8_t byte = static_cast<const uint8_t*>(lane)[i];
    return is_signed ? static_cast<int8_t>(byte) : byte;
  }
  int64_t sum_of(int64_t row, int64_t column) const {
    int64_t sum = column_init_.as<int32_t>()[column];
    if (test_.plan.has_rows) sum += row_init_.as<int32_t>()[row];
    for (int64_t g = 0; g < test_.groups; ++g) {
      const char* a = a_.as<char>() + row * a_stride_ + g * 4;
      const char* b = b_.as<char>() + (g * test_.plan.vecs * lanes_ + column) * 4;
      for (int i = 0; i < group_of(test_.plan.dot); ++i) {
        sum += value(a, i, has_signed_a()) * value(b, i, has_signed_b());
        if (test_.plan.dot != Int8Dot::crossed || g % 2 != 0) continue;
        const char* next_b = b + test_.plan.vecs * lanes_ * 4;
        sum += value(a, i, true) * value(a + 4, i, true) + value(b, i, true) * value(next_b, i, true);
      }
    }
    return sum;
  }
  void check_one(int64_t row, int64_t column) const {
    const int64_t sum = sum_of(row, column);
    const char* at = c_.as<char>() + row * c_stride_ + column * out_bytes_;
    if (!test_.plan.epilogue) {
      ASSERT_EQ(*reinterpret_cast<const int32_t*>(at), sum) << "row " << row << " column " << column;
      return;
    }
    const float inputs[] = {static_cast<float>(sum), scale_.as<float>()[column],
                            static_cast<float>(residual_.as<uint8_t>()[row * (columns_ + test_.gap) + column]),
                            static_cast<float>(static_cast<int8_t>(residual_.as<uint8_t>()[row]))};
    float expected = evaluate(test_.plan.epilogue->expression, inputs);
    const DType output = test_.plan.output();
    if (test_.plan.requantizes()) {
      expected = std::nearbyint(expected) + static_cast<float>(test_.plan.store.zero);
      const bool is_signed = output == DType::i8;
      expected = std::clamp(expected, is_signed ? -128.0F : 0.0F, is_signed ? 127.0F : 255.0F);
    }
    if (output == DType::f32) {
      ASSERT_NEAR(*reinterpret_cast<const float*>(at), expected, 1e-5 * (1 + std::abs(expected)));
    } else {
      // A product rounded once or twice may fall to the other side of a tie.
      const int got =
          output == DType::u8 ? *reinterpret_cast<const uint8_t*>(at) : *reinterpret_cast<const int8_t*>(at);
      ASSERT_NEAR(got, expected, 1) << "row " << row << " column " << column;
      if (std::abs(inputs[0] * inputs[1] - std::floor(inputs[0] * inputs[1]) - 0.5F) > 1e-3F) {
        ASSERT_EQ(got, expected) << "row " << row << " column " << column;
      }
    }
  }

  const TileCase test_;
  const int64_t lanes_, rows_, columns_, out_bytes_, a_stride_, c_stride_;
  GuardedBytes a_, b_, c_, column_init_, row_init_, scale_, residual_;
  std::mt19937 random_;
};

void expect_exact(const TileCase& test, unsigned seed) {
  SCOPED_TRACE(::testing::Message() << test << " seed=" << seed);
  TileBench bench(test, seed);
  bench.run(gemm_int8_tile(test.plan));
  bench.check();
}

std::vector<Int8Dot> dots_of(Isa isa) {
  if (can_cross(isa))
    return {Int8Dot::pairs, Int8Dot::crossed, Int8Dot::u8s7, Int8Dot::s8s8, Int8Dot::u8s8_halved, Int8Dot::s8u8_halved};
  if (!has_vnni(isa)) return {Int8Dot::pairs};
  return {Int8Dot::u8s8, Int8Dot::s8u8, Int8Dot::pairs};
}

TileCase random_case(std::mt19937& random, Isa isa) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  TileCase test;
  test.plan.isa = isa;
  const std::vector<Int8Dot> dots = dots_of(isa);
  test.plan.dot = dots[static_cast<size_t>(pick(0, static_cast<int>(dots.size()) - 1))];
  do {
    test.plan.rows = pick(1, 14);
    test.plan.vecs = pick(1, 6);
  } while (!test.plan.is_valid());
  test.plan.k_unroll = pick(1, 4) * lanes_of(test.plan.dot);
  test.plan.prefetch_lines = pick(0, 2);
  test.plan.has_rows = pick(0, 1) == 1;
  test.plan.masked = pick(0, 1) == 1;
  test.groups = pick(0, 40) / lanes_of(test.plan.dot) * lanes_of(test.plan.dot);
  test.tiles = pick(1, 4);
  if (test.plan.masked) test.tail_lanes = pick(1, vector_lanes(isa) - 1);
  test.gap = 4 * pick(0, 3);
  return test;
}

// The rows of a tile beside the next one's products, where that is possible.
void overlap(std::mt19937& random, TileCase& test) {
  constexpr int kTemps = 4;  // of the epilogues here, and a sum
  const int free = vector_registers(test.plan.isa) - test.plan.rows * test.plan.vecs - test.plan.vecs - 2;
  const auto most = static_cast<int>(std::min<int64_t>(8, test.groups / test.plan.rows));
  GemmInt8TilePlan overlapped = test.plan;
  overlapped.row_groups = std::uniform_int_distribution<int>(0, most)(random);
  if (free >= kTemps && overlapped.is_valid()) test.plan = overlapped;
}

// round(x0 * x1 + x2) + 3 as `output`, with x2 bytes of every element or of every row.
GemmEpilogue requantize(DType output, bool per_row) {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32, DType::u8, DType::i8};
  epilogue.inputs = {GemmInputAccess::columns, GemmInputAccess::columns, GemmInputAccess::uniform};
  const int x = e.add({.op = ExprOp::input, .a = 0}), scale = e.add({.op = ExprOp::input, .a = 1});
  const int product = e.add({.op = ExprOp::mul, .a = x, .b = scale});
  const int rounded = output == DType::f32 ? product : e.add({.op = ExprOp::round_even, .a = product});
  const int other = e.add({.op = ExprOp::input, .a = per_row ? 3 : 2});
  e.add({.op = ExprOp::add, .a = rounded, .b = other});
  e.output = output;
  return epilogue;
}

TEST(GemmInt8Tile, SumsExactlyOnEveryInstructionSet) {
  std::mt19937 random(1);
  for (const Isa isa : int8_isas_here()) {
    for (int i = 0; i < 150; ++i) {
      expect_exact(random_case(random, isa), random());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GemmInt8Tile, RequantizesToEveryTypeOnEveryInstructionSet) {
  std::mt19937 random(2);
  for (const Isa isa : int8_isas_here()) {
    for (const DType output : {DType::u8, DType::i8, DType::f32}) {
      for (int i = 0; i < 40; ++i) {
        TileCase test = random_case(random, isa);
        test.plan.epilogue = requantize(output, i % 2 == 0);
        overlap(random, test);
        expect_exact(test, random());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(GemmInt8Tile, StoresFloatsAsBytesOnEveryInstructionSet) {
  std::mt19937 random(3);
  for (const Isa isa : int8_isas_here()) {
    for (const DType output : {DType::u8, DType::i8}) {
      for (int i = 0; i < 60; ++i) {
        TileCase test = random_case(random, isa);
        test.plan.epilogue = requantize(DType::f32, i % 2 == 0);
        test.plan.store = {output, std::array{0, 7, -9}[static_cast<size_t>(i % 3)], i % 4 == 0};
        overlap(random, test);
        expect_exact(test, random());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(GemmInt8Tile, RefusesPlansBeyondTheRegistersAndVnniWhereItIsMissing) {
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2, .rows = 6, .vecs = 3}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx512, .dot = Int8Dot::u8s8, .rows = 4, .vecs = 2}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2, .rows = 2, .vecs = 2, .row_groups = 1}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2, .dot = Int8Dot::crossed, .rows = 5, .vecs = 2}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2, .dot = Int8Dot::crossed, .rows = 2, .k_unroll = 3}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx512, .dot = Int8Dot::crossed, .rows = 2}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2, .dot = Int8Dot::u8s8, .rows = 4, .vecs = 2}), JitError);
  EXPECT_THROW(gemm_int8_tile({.isa = Isa::avx2_vnni, .dot = Int8Dot::crossed, .rows = 2}), JitError);
  GemmInt8TilePlan full = {.isa = Isa::avx512, .rows = 14, .vecs = 2, .row_groups = 1};
  full.epilogue = requantize(DType::f32, true);
  EXPECT_THROW(gemm_int8_tile(full), JitError);
}

}  // namespace
}  // namespace lathe
