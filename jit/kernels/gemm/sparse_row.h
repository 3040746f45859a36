#pragma once
// A row with many zeros, as a rectifier leaves them, times B: memory brings those rows of B that the others take. They
// lie one behind the other, in the codes of bfp20.h with vectors of columns in place of rows of a group.
//
// A row of B of `groups` groups of 8 vectors of columns, in words of 32 bits:
//   scales [groups, rounded up to a vector]   the value of a unit of each group, divided by 2^12
//   group by group:
//     lower [lanes]      the lowest 4 bits of the codes of vectors 0, 1, ..., 7, from bit 0 on
//     upper [4][lanes]   the upper 16 bits of the codes of vectors 2i (bits 0 to 15) and 2i + 1 (bits 16 to 31)
#include <cstdint>

#include "jit/kernel.h"
#include "jit/kernels/gemm/bfp20.h"
#include "src/base/cpu.h"
#include "src/base/divide.h"

namespace lathe {

struct SparseRow {
  static constexpr int kVecs = Bfp20::kGroupRows;  // of a group
  // Rows of B that are added at once, while those that follow are fetched.
  static constexpr int kMostTogether = 4;
  static int together(Isa isa) { return has_avx512(isa) ? kMostTogether : 2; }

  static int64_t group_columns(Isa isa) { return int64_t{kVecs} * vector_lanes(isa); }
  static int64_t scale_words(Isa isa, int64_t groups) { return round_up(groups, int64_t{vector_lanes(isa)}); }
  static int64_t row_words(Isa isa, int64_t groups) {
    return scale_words(isa, groups) + groups * Bfp20::kGroupWords * vector_lanes(isa);
  }
};

struct SparseRowArgs {
  // together(isa) of each; where there are fewer, one again with a factor of 0. Of the next ones any address will do.
  const void* rows[SparseRow::kMostTogether];
  const void* next[SparseRow::kMostTogether];
  float factors[SparseRow::kMostTogether];
  float* sums;          // [groups * group_columns]: += factors * rows, in units of the columns
  int64_t groups;       // >= 1
  int64_t scale_bytes;  // of a row's scales
};
using SparseRowKernel = Kernel<void(const SparseRowArgs*)>;

// From the process's cache, or emitted now. Throws JitError.
SparseRowKernel sparse_row_kernel(Isa isa);

}  // namespace lathe
