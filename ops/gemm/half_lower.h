#pragma once
// Matrix products of float16 and bfloat16, and the way there and back for whatever else computes in float32.
#include "ops/gemm/gemm_lower.h"

namespace lathe {

// An operand of 16-bit floats as float32: ahead of time where it is constant, else by a step.
BufferId widened_operand(LowerContext& context, int input);
// A step that rounds `from`, as many float32 as output 0 has elements, to output 0's 16-bit type.
void add_rounding(LowerContext& context, BufferId from);

// As lower_product, of operands that are all bfloat16 or all float16, without orders of axes. bfloat16 by a constant
// matrix runs on AVX512-BF16 where the CPU has it; all else widens to float32, multiplies and rounds the result once.
bool lower_half_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form);

}  // namespace lathe
