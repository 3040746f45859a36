#pragma once
// An Expression over rows of elements: out[row][i] = expression(input 0 at [row][i], ...), as one generated loop.
// The code bakes in the expression, the element types and how each input is read along a row; addresses, lengths and
// strides are arguments. Nothing outside the rows is read or written.
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

enum class PointwiseAccess : uint8_t {
  contiguous,  // element i of the row
  scalar,      // one element for the row
  repeated,    // one vector of `vector_lanes(isa)` elements again and again; the row is whole vectors long
};

struct PointwisePlan {
  Isa isa = Isa::avx2;
  Expression expression;
  std::vector<PointwiseAccess> access;  // of each input
  // Results are bitwise "and"ed with one vector of masks: for channel blocks whose last lanes are padding.
  bool masks_lanes = false;

  std::string key() const;
  bool operator==(const PointwisePlan&) const = default;
};

struct PointwiseArgs {
  const void* const* inputs;        // by number
  const int64_t* row_stride_bytes;  // by number; from one row to the next
  void* out;
  int64_t out_row_stride_bytes;
  int64_t length;          // elements of a row, >= 0
  int64_t rows;            // >= 1
  const float* lane_mask;  // one vector, when the plan masks lanes
};

// From the process's cache of kernels, or emitted. Throws JitError when an element type has no code.
Kernel<void(const PointwiseArgs*)> pointwise_kernel(const PointwisePlan& plan);

}  // namespace lathe
