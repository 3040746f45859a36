// Products with weights of few bits, and these made float32, against plain loops over random shapes.
#include "jit/kernels/gemm/bits_rows.h"

#include <gtest/gtest.h>

#include <random>

#include "jit/kernels/gemm/unpack_bits.h"
#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::GuardedBytes;
using testing::isas_here;

struct PanelShape {
  int64_t columns, blocks, groups;  // groups of codes in each block
  int bits;
  bool has_offsets;
};

// A panel of random weights, and what they stand for.
struct Panel : PanelShape {
  int64_t group_rows = 32 / bits;
  GuardedBytes codes{static_cast<size_t>(blocks * groups * columns * 4)};
  GuardedBytes scales{static_cast<size_t>(blocks * columns * (has_offsets ? 2 : 1) * 4)};

  Panel(std::mt19937& random, const PanelShape& shape) : PanelShape(shape) {
    for (size_t i = 0; i < codes.size(); ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(random());
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < scales.size() / 4; ++i) scales.as<float>()[i] = uniform(random);
  }
  int64_t block_rows() const { return groups * group_rows; }
  int64_t rows() const { return blocks * block_rows(); }
  // 1 + code / 2^bits.
  double code(int64_t k, int64_t column) const {
    const uint32_t group = codes.as<uint32_t>()[k / group_rows * columns + column];
    return 1 + (group >> (k % group_rows * bits) & ((1u << bits) - 1)) / static_cast<double>(1 << bits);
  }
  const float* scales_of(int64_t block) const { return scales.as<float>() + block * columns * (has_offsets ? 2 : 1); }
  double value(int64_t k, int64_t column) const {
    const float* scale = scales_of(k / block_rows());
    const double offset = has_offsets ? scale[columns + column] : -double{kMiddleCode} * scale[column];
    return scale[column] * code(k, column) + offset;
  }
};

void expect_rows(std::mt19937& random, const BitsRowsPlan& plan, int64_t blocks) {
  SCOPED_TRACE(to_string(plan) + " " + std::to_string(blocks) + " blocks");
  const Panel panel(
      random, {int64_t{plan.vecs} * vector_lanes(plan.isa), blocks, plan.block_groups, plan.bits, plan.has_offsets});
  // Rows lie apart: the gap is never read.
  const int64_t stride = panel.rows() + 3, sums_stride = blocks + 2, c_stride = panel.columns + 5;
  const GuardedBytes a(static_cast<size_t>(((plan.rows - 1) * stride + panel.rows()) * 4));
  const GuardedBytes sums(static_cast<size_t>(((plan.rows - 1) * sums_stride + blocks) * 4));
  const GuardedBytes c(static_cast<size_t>(((plan.rows - 1) * c_stride + panel.columns) * 4));
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      double sum = 0;
      for (int64_t i = 0; i < panel.block_rows(); ++i) {
        float& element = a.as<float>()[row * stride + block * panel.block_rows() + i];
        element = uniform(random);
        sum += element;
      }
      sums.as<float>()[row * sums_stride + block] =
          static_cast<float>(plan.has_offsets ? sum : -double{kMiddleCode} * sum);
    }
  }
  const BitsPanelArgs args{
      panel.codes.data(), panel.scales.as<float>(), a.as<float>(), sums.as<float>(), c.as<float>(), blocks,
      stride * 4,         sums_stride * 4,          c_stride * 4};
  bits_rows_kernel(plan).entry()(&args);
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (int64_t column = 0; column < panel.columns; ++column) {
      double expected = 0;
      for (int64_t k = 0; k < panel.rows(); ++k) expected += a.as<float>()[row * stride + k] * panel.value(k, column);
      ASSERT_NEAR(c.as<float>()[row * c_stride + column], expected, 2e-6 * static_cast<double>(panel.rows()))
          << "row " << row << " column " << column;
    }
  }
}

TEST(BitsRows, AreThoseOfPlainLoops) {
  std::mt19937 random(7);
  for (const Isa isa : isas_here()) {
    for (const int bits : {2, 4, 8}) {
      for (const int vecs : {1, 2}) {
        for (int rows = 1; rows <= most_bits_rows(isa, vecs); ++rows) {
          const int groups = 16 * bits / 32 << (random() % 5);
          const auto blocks = 1 + static_cast<int64_t>(random() % 4);
          expect_rows(random, {isa, bits, rows, vecs, groups, random() % 2 == 0, random() % 2 == 0}, blocks);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(BitsRows, RefuseMoreRowsThanRegistersHold) {
  for (const Isa isa : isas_here()) {
    EXPECT_GE(most_bits_rows(isa, 2), 1);
    EXPECT_THROW(bits_rows_kernel({isa, 4, most_bits_rows(isa, 2) + 1, 2}), JitError);
    EXPECT_THROW(bits_rows_kernel({isa, 3, 1, 2}), JitError);
  }
}

TEST(UnpackBits, GivesWhatCodesStandFor) {
  std::mt19937 random(8);
  for (const Isa isa : isas_here()) {
    for (const int bits : {2, 4, 8}) {
      for (const bool has_offsets : {false, true}) {
        const int vecs = 1 + static_cast<int>(random() % 4);
        const Panel panel(
            random, {int64_t{vecs} * vector_lanes(isa), 1, 1 + static_cast<int64_t>(random() % 9), bits, has_offsets});
        const GuardedBytes out(static_cast<size_t>(panel.rows() * panel.columns * 4));
        unpack_bits_kernel({isa, bits, vecs, has_offsets})(panel.codes.as<const void>(), panel.scales.as<const void>(),
                                                           out.data(), panel.groups);
        for (int64_t k = 0; k < panel.rows(); ++k)
          for (int64_t column = 0; column < panel.columns; ++column)
            ASSERT_NEAR(out.as<float>()[k * panel.columns + column], panel.value(k, column), 3e-7)
                << name_of(isa) << " " << bits << " bits, row " << k << " column " << column;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
