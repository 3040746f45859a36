#pragma once
// Transposes a matrix of 4-byte elements by tiles of lanes x lanes in registers.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct TransposePlan {
  Isa isa = Isa::avx2;
  int rows = 0;            // of the input, exactly, when fewer than lanes; 0: any number from lanes on
  int columns = 0;         // the same
  bool zero_fill = false;  // with `rows`: every output row is written `lanes` wide, zeros behind its elements
  bool operator==(const TransposePlan&) const = default;
};

std::string to_string(const TransposePlan& plan);
// The plan for a matrix of these extents.
TransposePlan plan_transpose(Isa isa, int64_t rows, int64_t columns, bool zero_fill = false);

// to[c][r] = from[r][c]; strides are between rows of `from` and rows of `to`. The matrices must not overlap: elements
// may be written twice.
using TransposeFn = void(const void* from, void* to, int64_t from_stride_bytes, int64_t to_stride_bytes, int64_t rows,
                         int64_t columns);
// Throws JitError on a plan out of range.
Kernel<TransposeFn> transpose_kernel(const TransposePlan& plan);

}  // namespace lathe
