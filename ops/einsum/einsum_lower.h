#pragma once
#include "ops/einsum/einsum_equation.h"
#include "ops/lower.h"

namespace lathe {

// One operand that is permuted, or two that make a batch of matrix products in any order of axes. False: more
// operands, sums over an axis of one operand alone, and other types than float32.
bool lower_einsum(LowerContext& context, const EinsumEquation& equation);

}  // namespace lathe
