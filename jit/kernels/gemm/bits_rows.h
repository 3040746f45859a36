#pragma once
// A few rows of A times one panel of weights of few bits, which become float32 in registers: with offsets
//
//   C[r][c] = sum over blocks of (scale[block][c] * sum over k of A[r][k] * (1 + code[k][c] / 2^bits)
//                                 + offset[block][c] * a_sum[r][block])
//
// for `vecs * lanes(isa)` columns, without them scale * (sum + a_sum). The weights stream once, for all rows.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/gemm/bits_panel.h"
#include "src/base/cpu.h"

namespace lathe {

struct BitsRowsPlan {
  Isa isa = Isa::avx2;
  int bits = 4;  // 2, 4 or 8
  int rows = 1;
  int vecs = 1;
  int block_groups = 4;  // 32-bit groups of a column that share a scale
  bool has_offsets = false;
  bool codes_to_l2 = false;  // they are fetched ahead into L2, not into L1
  bool operator==(const BitsRowsPlan&) const = default;
  bool is_valid() const;
};

std::string to_string(const BitsRowsPlan& plan);
// As many rows as registers hold beside panels of this width.
int most_bits_rows(Isa isa, int vecs);

// `a` is float32, of each row and block `a_blocks` has the float32 a_sum.
using BitsRowsFn = void(const BitsPanelArgs*);
// From the process's code cache. Throws JitError unless is_valid().
Kernel<BitsRowsFn> bits_rows_kernel(const BitsRowsPlan& plan);

}  // namespace lathe
