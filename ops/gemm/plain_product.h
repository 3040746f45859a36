#pragma once
// Matrix products of element types that no generated kernel has (float64, integers of 32 and 64 bits, which wrap
// around), in plain loops over tiles that the compiler keeps in registers.
#include "ops/gemm/gemm_lower.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/lower.h"

namespace lathe {

// For MatMul and Gemm: inputs 0 and 1, and 2 as the bias where it is there. False: other types, or an epilogue.
bool lower_plain_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form);

}  // namespace lathe
