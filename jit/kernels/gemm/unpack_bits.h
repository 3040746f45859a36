#pragma once
// Weights of few bits to float32, as the kernel of a matrix product reads them: rows of `vecs * lanes(isa)` columns.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct UnpackBitsPlan {
  Isa isa = Isa::avx2;
  int bits = 4;  // or 8
  int vecs = 1;
  bool operator==(const UnpackBitsPlan&) const = default;
};

std::string to_string(const UnpackBitsPlan& plan);

// out[r][c] = code[r][c] * scales[c] + scales[columns + c], for 2 * row_pairs rows (row_pairs >= 1). `codes` are bytes:
// of 8 bits row by row; of 4 bits a byte for each column of a pair of rows, the first row in the low half.
using UnpackBitsFn = void(const void* codes, const void* scales, void* out, int64_t row_pairs);
// Throws JitError on a plan out of range.
Kernel<UnpackBitsFn> unpack_bits_kernel(const UnpackBitsPlan& plan);

}  // namespace lathe
