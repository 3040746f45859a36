#pragma once
// Sums of the rows of a matrix of bytes, each multiplied by a factor: what a zero point adds to a product of integers.
// AVX-512 with VNNI.
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct RowSumsArgs {
  const void* from;
  int32_t* to;           // one for each row; wraps around as the products' sums do
  int64_t row_groups;    // kRowSumsTogether rows each, >= 1
  int64_t columns;       // bytes, >= 1
  int64_t stride_bytes;  // from row to row
  int32_t factor;
};
using RowSumsFn = void(const RowSumsArgs* args);
constexpr int64_t kRowSumsTogether = 16;
// Throws JitError on other instruction sets.
Kernel<RowSumsFn> row_sums_kernel(Isa isa, bool is_signed);

}  // namespace lathe
