#pragma once
// Reductions of float32: of dense rows to one element each, or of columns (the reduced axis has a stride and vectors
// run across it).
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

enum class ReduceOp : uint8_t { sum, sum_squares, sum_absolutes, product, maximum, minimum };
enum class ReduceFinish : uint8_t { none, scale, square_root, logarithm };

struct ReducePlan {
  Isa isa = Isa::avx2;
  ReduceOp op = ReduceOp::sum;  // maximum and minimum give NaN when there is one
  ReduceFinish finish = ReduceFinish::none;
  bool is_strided = false;
  bool operator==(const ReducePlan&) const = default;
};
std::string to_string(const ReducePlan& plan);

// Strided: `rows` is the extent of the axis, its elements stride_bytes apart, and each of the `columns` columns is
// reduced to one element of `to`. Else: each of `rows` dense rows of `columns` elements is.
struct ReduceArgs {
  const float* from;
  float* to;
  int64_t rows, columns;
  int64_t stride_bytes;
  float scale;  // of ReduceFinish::scale
};
using ReduceFn = void(const ReduceArgs* args);
// Requires of a call: rows >= 1, columns >= 1.
Kernel<ReduceFn> reduce_kernel(const ReducePlan& plan);

}  // namespace lathe
