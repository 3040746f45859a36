// Products of bytes with weights of few bits, and the bytes' making, against plain loops over random shapes.
#include "jit/kernels/gemm/bits_int8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/guarded_bytes.h"

namespace lathe {
namespace {

using testing::GuardedBytes;

// With VNNI.
std::vector<Isa> isas() {
  std::vector<Isa> here;
  for (const Isa isa : {Isa::avx2_vnni, Isa::avx512_vnni})
    if (is_usable(isa)) here.push_back(isa);
  return here;
}

// Where in a block the kernels have row `k`.
int64_t place_of(int64_t k, int bits) {
  const int64_t rows = 32 / bits, in_byte = 8 / bits, group = k / rows, i = k % rows;
  return group * rows + i % in_byte * 4 + i / in_byte;
}

void expect_blocks(std::mt19937& random, Isa isa, int bits, int64_t block, bool has_offsets) {
  SCOPED_TRACE(::testing::Message() << name_of(isa) << " " << bits << " bits, blocks of " << block
                                    << (has_offsets ? " offsets" : ""));
  const int64_t blocks = 1 + static_cast<int64_t>(random() % 3);
  const GuardedBytes from(static_cast<size_t>(blocks * block * 4)), to(static_cast<size_t>(blocks * block));
  const GuardedBytes numbers(static_cast<size_t>(blocks) * sizeof(BlockOfBytes));
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (int64_t i = 0; i < blocks * block; ++i) from.as<float>()[i] = i < block && blocks > 1 ? 0 : uniform(random);
  quantize_blocks_kernel(isa, bits, block, has_offsets)(from.as<const void>(), to.data(), numbers.data(), blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* x = from.as<float>() + b * block;
    float largest = 0;
    for (int64_t i = 0; i < block; ++i) largest = std::max(largest, std::abs(x[i]));
    int sum = 0;
    for (int64_t i = 0; i < block; ++i) {
      const int byte = to.as<int8_t>()[b * block + place_of(i, bits)];
      const double exact = largest > 0 ? x[i] * 127.0 / largest : 0;
      ASSERT_NEAR(byte, exact, 0.5001) << "block " << b << " row " << i;
      sum += byte;
    }
    const BlockOfBytes& got = numbers.as<BlockOfBytes>()[b];
    const float scale = largest / 127;
    ASSERT_NEAR(got.scale, scale / static_cast<float>(1 << bits), 1e-6F * scale + 1e-30F);
    if (has_offsets) {
      ASSERT_NEAR(std::bit_cast<float>(got.sum), scale * static_cast<float>(sum), 1e-5F * (1 + std::abs(scale)));
    } else {
      ASSERT_EQ(static_cast<int32_t>(got.sum), -(1 << (bits - 1)) * sum);
    }
  }
}

TEST(BitsInt8Rows, QuantizeBlocks) {
  if (isas().empty()) GTEST_SKIP() << "no VNNI";
  std::mt19937 random(5);
  for (const Isa isa : isas())
    for (const int bits : {2, 4, 8})
      for (const int64_t block : {16, 32, 128, 1024})
        for (const bool has_offsets : {false, true}) {
          expect_blocks(random, isa, bits, block, has_offsets);
          if (HasFatalFailure()) return;
        }
}

TEST(BitsInt8Rows, ANaNStaysOne) {
  if (isas().empty()) GTEST_SKIP() << "no VNNI";
  std::vector<float> from(64, 1);
  from[40] = std::nanf("");
  std::vector<int8_t> to(64);
  std::vector<BlockOfBytes> numbers(2);
  for (const Isa isa : isas()) {
    quantize_blocks_kernel(isa, 4, 32, false)(static_cast<const void*>(from.data()), static_cast<void*>(to.data()),
                                              static_cast<void*>(numbers.data()), int64_t{2});
    EXPECT_FALSE(std::isnan(numbers[0].scale));
    EXPECT_TRUE(std::isnan(numbers[1].scale));
  }
}

void expect_rows(std::mt19937& random, const BitsInt8RowsPlan& plan) {
  SCOPED_TRACE(to_string(plan));
  const auto blocks = 1 + static_cast<int64_t>(random() % 4);
  const int64_t columns = plan.vecs * vector_lanes(plan.isa), group_rows = 32 / plan.bits,
                block = plan.block_groups * group_rows;
  const int64_t stride = blocks * block + 5, blocks_stride = blocks + 1, c_stride = columns + 3;
  const int64_t kinds = plan.has_offsets ? 2 : 1;
  const GuardedBytes codes(static_cast<size_t>(blocks * plan.block_groups * columns * 4));
  const GuardedBytes scales(static_cast<size_t>(blocks * columns * kinds * 4));
  const GuardedBytes a(static_cast<size_t>((plan.rows - 1) * stride + blocks * block));
  const GuardedBytes numbers(static_cast<size_t>((plan.rows - 1) * blocks_stride + blocks) * sizeof(BlockOfBytes));
  const GuardedBytes c(static_cast<size_t>(((plan.rows - 1) * c_stride + columns) * 4));
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t i = 0; i < codes.size(); ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(random());
  for (size_t i = 0; i < scales.size() / 4; ++i) scales.as<float>()[i] = uniform(random);
  for (size_t i = 0; i < a.size(); ++i) a.as<int8_t>()[i] = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (int64_t b = 0; b < blocks; ++b) {
      BlockOfBytes& number = numbers.as<BlockOfBytes>()[row * blocks_stride + b];
      number.scale = uniform(random);
      number.sum = plan.has_offsets ? std::bit_cast<uint32_t>(uniform(random)) : static_cast<uint32_t>(random() % 1000);
    }
  }
  const BitsPanelArgs args{codes.data(),   scales.as<float>(),
                           a.as<int8_t>(), numbers.as<BlockOfBytes>(),
                           c.as<float>(),  blocks,
                           stride,         blocks_stride * static_cast<int64_t>(sizeof(BlockOfBytes)),
                           c_stride * 4};
  bits_int8_rows_kernel(plan).entry()(&args);
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      double expected = 0, size = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const BlockOfBytes& number = numbers.as<BlockOfBytes>()[row * blocks_stride + b];
        int64_t sum = plan.has_offsets ? 0 : static_cast<int32_t>(number.sum);
        for (int64_t k = 0; k < block; ++k) {
          const uint32_t group = codes.as<uint32_t>()[(b * plan.block_groups + k / group_rows) * columns + column];
          const uint32_t code = group >> (k % group_rows * plan.bits) & ((1u << plan.bits) - 1);
          sum += int64_t{code} * a.as<int8_t>()[row * stride + b * block + place_of(k, plan.bits)];
        }
        const float* scale = scales.as<float>() + b * columns * kinds;
        expected += double{scale[column]} * number.scale * static_cast<double>(sum);
        size += std::abs(double{scale[column]} * number.scale * static_cast<double>(sum));
        if (plan.has_offsets)
          expected += (double{scale[column]} + scale[columns + column]) * std::bit_cast<float>(number.sum);
      }
      ASSERT_NEAR(c.as<float>()[row * c_stride + column], expected, 1e-6 * (size + 4))
          << "row " << row << " column " << column;
    }
  }
}

TEST(BitsInt8Rows, AreThoseOfPlainLoops) {
  if (isas().empty()) GTEST_SKIP() << "no VNNI";
  std::mt19937 random(6);
  for (const Isa isa : isas()) {
    for (const int bits : {2, 4, 8}) {
      for (int vecs = 1; vecs <= kMostBitsInt8Vecs; ++vecs) {
        for (int rows = 1; rows <= most_bits_int8_rows(isa, vecs); ++rows) {
          expect_rows(random,
                      {isa, bits, rows, vecs, 16 * bits / 32 << (random() % 6), random() % 2 == 0, random() % 2 == 0});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(BitsInt8Rows, RefuseWhatIsOutOfRange) {
  EXPECT_THROW(bits_int8_rows_kernel({Isa::avx512_vnni, 4, kMostBitsInt8Rows + 1, 2}), JitError);
  EXPECT_THROW(bits_int8_rows_kernel({Isa::avx2_vnni, 4, 3, 2}), JitError) << "16 registers";
  EXPECT_THROW(bits_int8_rows_kernel({Isa::avx512_vnni, 3, 1, 2}), JitError);
  EXPECT_THROW(bits_int8_rows_kernel({Isa::avx2, 4, 1, 2}), JitError) << "no VNNI";
  EXPECT_THROW(quantize_blocks_kernel(Isa::avx512_vnni, 4, 24, false), JitError);
}

}  // namespace
}  // namespace lathe
