#pragma once
// Products with few columns, as dot products: sixteen (AVX2: eight) outputs at a time, each a vector of partial sums,
// which are then added up across lanes for all of them together.
//
//   C[rows*tiles x columns] = epilogue( A[rows*tiles x k] * B[k x columns] ),   rows * columns <= lanes(isa)
//
// A's rows are contiguous, any stride apart, and never read outside. B comes in steps of lanes(isa) values of k, one
// column's vector behind the other, zeros past k.
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernels/gemm/gemm.h"

namespace lathe {

// How C or an extra input of the epilogue lies over a tile's outputs.
enum class RowDotsAccess : uint8_t {
  dense,     // one behind the other, row by row
  repeated,  // an input only: the same for all rows
  strided,   // by the two strides of the arguments
};

struct RowDotsPlan {
  Isa isa = Isa::avx2;
  int rows = 1, columns = 1;
  RowDotsAccess c = RowDotsAccess::dense;
  Expression epilogue;                // input 0: the product; nodes empty: none
  std::vector<RowDotsAccess> inputs;  // of slot 1, 2, ...

  static int most_columns(Isa isa) { return has_avx512(isa) ? 8 : 4; }
  bool operator==(const RowDotsPlan&) const = default;
  bool is_valid() const;
  std::string key() const;
};

struct RowDotsArgs {
  const float* a;
  const float* b;
  float* c;
  int64_t k;      // >= 0
  int64_t tiles;  // >= 1, one below the other
  int64_t a_stride_bytes;
  int64_t c_row_bytes, c_column_bytes;
  const float* inputs[kMaxGemmInputs];
  int64_t input_row_bytes[kMaxGemmInputs], input_column_bytes[kMaxGemmInputs];
};

using RowDots = Kernel<void(const RowDotsArgs*)>;

// From the process's code cache. Throws JitError unless is_valid(), or when the epilogue has no vector form.
RowDots row_dots(const RowDotsPlan& plan);

}  // namespace lathe
