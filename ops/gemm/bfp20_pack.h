#pragma once
#include "ops/gemm/gemm_pack.h"

namespace lathe {

// Can B times `scale` be block floating point (jit/kernels/gemm/bfp20.h)? Not with an infinity or NaN, nor where a
// block's largest element is so small that its scale would have no full precision.
bool fits_bfp20(const MatrixView& b, float scale);

// The nearest code to so many units, of which there are at most Bfp20::kLargestCode.
inline int32_t bfp20_code(float units) { return static_cast<int32_t>(units + (units < 0 ? -0.5F : 0.5F)); }
// A group of `lanes` columns: its rows of codes lie `stride` apart. Bfp20::kGroupWords * lanes words.
void write_bfp20_group(const int32_t* codes, int64_t stride, int64_t lanes, float* out);

// As pack_panels(), to block floating point: Bfp20::words(rows) words a column. Requires: fits_bfp20().
void pack_bfp20(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale, float* out);

}  // namespace lathe
