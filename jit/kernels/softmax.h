#pragma once
// Softmax and LogSoftmax of float32: over rows (the axis is contiguous), or over columns (the axis has a stride and
// vectors run across it).
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct SoftmaxPlan {
  Isa isa = Isa::avx2;
  bool is_log = false;
  bool is_strided = false;
  bool operator==(const SoftmaxPlan&) const = default;
};
std::string to_string(const SoftmaxPlan& plan);

// from and to may be the same. Strided: `rows` is the extent of the axis, its elements stride_bytes apart, and each of
// the `columns` columns is normalized. Else: each of `rows` dense rows of `columns` elements is.
struct SoftmaxArgs {
  const float* from;
  float* to;
  int64_t rows, columns;
  int64_t stride_bytes;
};
using SoftmaxFn = void(const SoftmaxArgs* args);
// Requires of a call: rows >= 1, columns >= 1.
Kernel<SoftmaxFn> softmax_kernel(const SoftmaxPlan& plan);

}  // namespace lathe
