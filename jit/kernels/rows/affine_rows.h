#pragma once
// Dense float32 rows brought to (x - center) * scale + shift by scalars of each row.
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct AffineArgs {
  const float* from;
  float* to;
  int64_t rows, columns;
  const float *centers, *scales, *shifts;  // one a row
};
using AffineFn = void(const AffineArgs* args);
Kernel<AffineFn> affine_rows_kernel(Isa isa);

}  // namespace lathe
