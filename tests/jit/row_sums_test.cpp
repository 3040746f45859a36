#include "jit/kernels/gemm/row_sums.h"

#include <gtest/gtest.h>

#include <random>

#include "jit/kernels/common/int8_dot.h"
#include "tests/guarded_bytes.h"

namespace lathe {
namespace {

using testing::GuardedBytes;

void expect_sums(std::mt19937& random, int64_t groups, int64_t columns, int64_t gap, bool is_signed) {
  SCOPED_TRACE(::testing::Message() << groups << " groups of rows, " << columns << " columns, gap " << gap
                                    << (is_signed ? " signed" : " unsigned"));
  const int64_t rows = groups * kRowSumsTogether, stride = columns + gap;
  const GuardedBytes from(static_cast<size_t>((rows - 1) * stride + columns)), to(static_cast<size_t>(rows * 4));
  for (size_t i = 0; i < from.size(); ++i) from.as<uint8_t>()[i] = static_cast<uint8_t>(random());
  const auto factor = static_cast<int32_t>(random());
  const RowSumsArgs args{from.as<char>(), to.as<int32_t>(), groups, columns, stride, factor};
  row_sums_kernel(Isa::avx512_vnni, is_signed)(&args);
  for (int64_t row = 0; row < rows; ++row) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const uint8_t byte = from.as<uint8_t>()[row * stride + i];
      sum += static_cast<uint32_t>(is_signed ? static_cast<int8_t>(byte) : static_cast<int>(byte));
    }
    ASSERT_EQ(static_cast<uint32_t>(to.as<int32_t>()[row]), sum * static_cast<uint32_t>(factor)) << "row " << row;
  }
}

TEST(RowSums, AreThoseOfPlainLoopsAndReadNothingElse) {
  if (!has_wide_vnni(usable_isa())) GTEST_SKIP() << "no VNNI";
  std::mt19937 random(11);
  for (const int64_t columns : {1, 5, 63, 64, 65, 128, 300}) {
    for (const int64_t gap : {0, 7, 640}) {
      for (const bool is_signed : {false, true}) {
        expect_sums(random, 1 + static_cast<int64_t>(random() % 3), columns, gap, is_signed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(RowSums, RefusesInstructionSetsWithoutWideVnni) {
  EXPECT_THROW(row_sums_kernel(Isa::avx2, false), JitError);
  EXPECT_THROW(row_sums_kernel(Isa::avx2_vnni, false), JitError);
  EXPECT_THROW(row_sums_kernel(Isa::avx512, true), JitError);
}

}  // namespace
}  // namespace lathe
