#pragma once
// The first few elements of each of as many columns as a vector has lanes, by value and then by place: columns side by
// side, each with a sorted list in its lane of a few registers.
#include <cstdint>

#include "jit/kernel.h"
#include "jit/kernels/select/beyond.h"

namespace lathe {

struct ColumnPlacesPlan {
  Isa isa = Isa::avx2;
  int count = 1;  // of each column
  SelectOrder order = SelectOrder::largest_first;

  // Values and places of the lists lie in registers.
  static int most_count(Isa isa) { return (vector_registers(isa) - 5) / 2; }
  bool is_valid() const { return count >= 1 && count <= most_count(isa); }
};

struct ColumnPlacesArgs {
  const float* from;     // the first row of the columns
  int64_t stride_bytes;  // from row to row
  int64_t rows;          // >= count
  int32_t* places;       // [count][lanes]
};
// Gives 0 where a NaN was seen: then `places` mean nothing.
using ColumnPlacesFn = int64_t(const ColumnPlacesArgs*);
// Throws JitError on a plan out of range.
Kernel<ColumnPlacesFn> column_places_kernel(const ColumnPlacesPlan& plan);

}  // namespace lathe
