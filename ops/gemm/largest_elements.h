#pragma once
#include <vector>

#include "ops/gemm/gemm_pack.h"

namespace lathe {

// The largest magnitude of each column, of which `largest` has as many; NaN where one is in it.
void find_largest(const MatrixView& matrix, std::vector<float>& largest);

// Has each column of each block of so many rows, times `scale`, either zeros alone or a finite largest element, `least`
// or more?
bool fits_blocks(const MatrixView& b, float scale, int64_t block_rows, float least);

}  // namespace lathe
