#include "jit/kernels/copy/transpose.h"

#include <gtest/gtest.h>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

void expect_transposed(Isa isa, int64_t rows, int64_t columns, bool zero_fill, std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(isa)) + " " + std::to_string(rows) + "x" + std::to_string(columns) +
               (zero_fill ? " filled" : ""));
  const bool begins_at_border = random() % 2 == 0;
  const auto wide = static_cast<int64_t>(zero_fill ? std::max<int64_t>(rows, vector_lanes(isa)) : rows);
  GuardedFloats from(static_cast<size_t>(rows * columns), begins_at_border);
  GuardedFloats to(static_cast<size_t>(wide * columns), begins_at_border);
  from.randomize(random, -1, 1);
  transpose_kernel(plan_transpose(isa, rows, columns, zero_fill))(from.data(), to.data(), columns * 4, wide * 4, rows,
                                                                  columns);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < wide; ++r) {
      const float expected = r < rows ? from[static_cast<size_t>(r * columns + c)] : 0.0f;
      ASSERT_EQ(to[static_cast<size_t>(c * wide + r)], expected) << "row " << r << " column " << c;
    }
  }
}

TEST(TransposeKernel, TransposesEverySmallMatrixAndNothingElse) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    for (int64_t rows = 1; rows <= 34; ++rows) {
      for (const int64_t columns : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33, 49}) {
        expect_transposed(isa, rows, columns, false, random);
      }
    }
  }
}

TEST(TransposeKernel, FillsShortRowsWithZeros) {
  std::mt19937 random(2);
  for (const Isa isa : testing::isas_here()) {
    for (int64_t rows = 1; rows <= vector_lanes(isa); ++rows) {
      for (const int64_t columns : {1, 3, 4, 14, 16, 49, 100}) expect_transposed(isa, rows, columns, true, random);
    }
  }
}

TEST(TransposeKernel, KeepsToTheStrides) {
  std::mt19937 random(3);
  for (const Isa isa : testing::isas_here()) {
    const size_t rows = 20, columns = 37, from_stride = 41, to_stride = 29;
    GuardedFloats from(rows * from_stride), to(columns * to_stride);
    from.randomize(random, -1, 1);
    for (size_t i = 0; i < to.size(); ++i) to[i] = 7;
    transpose_kernel(plan_transpose(isa, rows, columns))(from.data(), to.data(), from_stride * 4, to_stride * 4, rows,
                                                         columns);
    for (size_t c = 0; c < columns; ++c) {
      for (size_t r = 0; r < to_stride; ++r) {
        ASSERT_EQ(to[c * to_stride + r], r < rows ? from[r * from_stride + c] : 7.0f);
      }
    }
  }
}

TEST(TransposeKernel, RefusesPlansOutOfRange) {
  EXPECT_THROW(transpose_kernel({.isa = Isa::avx2, .rows = 8}), JitError);
  EXPECT_THROW(transpose_kernel({.isa = Isa::avx2, .columns = -1}), JitError);
}

}  // namespace
}  // namespace lathe
