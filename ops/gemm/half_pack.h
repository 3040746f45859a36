#pragma once
#include "jit/kernels/gemm/weight_format.h"
#include "ops/gemm/gemm_pack.h"

namespace lathe {

// Is B times `scale` the same in this format of 16 bits, element by element? Not with a NaN.
bool fits_halves(const MatrixView& b, float scale, WeightFormat format);

// As pack_panels(), in 16 bits: words_of(format, rows) words a column. Requires: fits_halves(), and panels of an even
// number of columns.
void pack_halves(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale,
                 WeightFormat halves, float* out);

}  // namespace lathe
