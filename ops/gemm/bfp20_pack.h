#pragma once
#include "ops/gemm/gemm_pack.h"

namespace lathe {

// Can B times `scale` be block floating point (jit/kernels/gemm/bfp20.h)? Not with an infinity or NaN, nor where a
// block's largest element is so small that its scale would have no full precision.
bool fits_bfp20(const MatrixView& b, float scale);

// As pack_panels(), to block floating point: Bfp20::words(rows) words a column. Requires: fits_bfp20().
void pack_bfp20(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale, float* out);

}  // namespace lathe
