#pragma once
// Matrix products of float16 and bfloat16.
#include "ops/gemm_lower.h"

namespace lathe {

// As lower_product, of operands that are all bfloat16 or all float16, without orders of axes. bfloat16 by a constant
// matrix runs on AVX512-BF16 where the CPU has it; all else widens to float32, multiplies and rounds the result once.
bool lower_half_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form);

}  // namespace lathe
