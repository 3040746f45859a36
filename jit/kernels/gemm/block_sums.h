#pragma once
// Sums and differences of the equally large blocks of one matrix, several at once: each element of the blocks is read
// once. Operands of products by fewer products of blocks (ops/gemm/bilinear_scheme.h).
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

// Of each block, row by row of blocks: 1, -1 or 0; not all 0.
using BlockSum = std::vector<int>;

struct BlockSumsPlan {
  static constexpr int kMostRows = 2, kMostColumns = 3, kMostSums = 18;
  Isa isa = Isa::avx2;
  int rows = 2, columns = 2;   // of blocks
  std::vector<BlockSum> sums;  // 1 to kMostSums
  bool scaled = false;         // each vector is taken as much as its RowScale says

  bool is_valid() const;
  std::string key() const;
};

// Of what is read: bits that are not in `mask` become zero, which also takes infinities away; then a factor.
struct RowScale {
  float factor;
  uint32_t mask;
};

struct BlockSumsArgs {
  const float* in;                                    // the first block; overwritten
  float* out;                                         // the first sum; overwritten
  int64_t in_block_row_bytes, in_block_column_bytes;  // from block to block
  int64_t out_sum_bytes;                              // from sum to sum
  int64_t rows;                                       // >= 1; overwritten
  int64_t vectors;                                    // >= 1: of a row
  int64_t in_vector_bytes, out_vector_bytes;          // from one vector of a row to the next
  int64_t in_stride_bytes, out_stride_bytes;          // from row to row
  const RowScale* scales;                             // by vector of a row: of the first row of blocks
  int64_t scales_block_row_bytes;                     // to those of the next
};

using BlockSums = Kernel<void(BlockSumsArgs*)>;

// From the process's code cache. Throws JitError unless is_valid().
BlockSums block_sums(const BlockSumsPlan& plan);

}  // namespace lathe
