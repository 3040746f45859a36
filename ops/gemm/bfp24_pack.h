#pragma once
#include "ops/gemm/gemm_pack.h"

namespace lathe {

// Can B times `scale` be block floating point of 24 bits (jit/kernels/gemm/bfp24.h)? Not with an infinity or NaN, nor
// where a column's largest element is so small that its scale would have no full precision, even where sums of its
// elements (Winograd's frequencies) are a billion times smaller.
bool fits_bfp24(const MatrixView& b, float scale);

// As pack_panels(), to Bfp24::words(rows) words a column. Rows are a multiple of Bfp24::kGroupRows. Requires:
// fits_bfp24(), of B or of what it is made from.
void pack_bfp24(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale, float* out);

}  // namespace lathe
