#pragma once
// A few rows of bytes times one panel of weights of few bits, by VNNI: for each block of k the product of
// integers is exact, then scaled and added up in float32.
//
//   C[r][c] = sum over blocks of (scale[block][c] * A.scale[r][block] * sum over k of A[r][k] * code[k][c]
//                                 + (scale + offset)[block][c] * A.sum[r][block])
//
// for `vecs` vectors of columns; without offsets the integers begin with A.sum instead.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/gemm/bits_panel.h"
#include "src/base/cpu.h"

namespace lathe {

struct BitsInt8RowsPlan {
  Isa isa = Isa::avx512_vnni;
  int bits = 4;  // 2, 4 or 8
  int rows = 1;
  int vecs = 1;
  int block_groups = 4;  // 32-bit groups of a column that share a scale
  bool has_offsets = false;
  bool codes_to_l2 = false;  // they are fetched ahead into L2, not into L1
  bool operator==(const BitsInt8RowsPlan&) const = default;
  bool is_valid() const;
};

std::string to_string(const BitsInt8RowsPlan& plan);
inline constexpr int kMostBitsInt8Vecs = 2;
inline constexpr int kMostBitsInt8Rows = 6;
int most_bits_int8_rows(Isa isa, int vecs);  // that the registers hold

// Of a row and a block: A is about 2^bits * scale * bytes. `sum` is that of all of A there as float32, or without
// offsets -2^(bits - 1) times the sum of the bytes as int32.
struct BlockOfBytes {
  float scale;
  uint32_t sum;
};

// `a` is int8 in the order of quantize_blocks_kernel(), `a_blocks` are BlockOfBytes.
using BitsInt8RowsFn = void(const BitsPanelArgs*);
// From the process's code cache. Throws JitError unless is_valid().
Kernel<BitsInt8RowsFn> bits_int8_rows_kernel(const BitsInt8RowsPlan& plan);

// Blocks of `block` floats (a multiple of 16) as signed bytes, the largest as 127: for each 32-bit group of codes the
// rows whose codes lie in the lowest bits of its bytes, then those above them. A NaN makes the scale NaN.
// `blocks` >= 1. Throws JitError.
using QuantizeBlocksFn = void(const void* from, void* bytes, void* block_of_bytes, int64_t blocks);
Kernel<QuantizeBlocksFn> quantize_blocks_kernel(Isa isa, int bits, int64_t block, bool has_offsets);

}  // namespace lathe
