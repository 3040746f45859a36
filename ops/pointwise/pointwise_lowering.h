#pragma once
// Lowering of elementwise nodes: their expression, with what was fused behind it, as one generated loop.
#include "ops/lower.h"

namespace lathe {

// For every operator with an `express`, and lathe::Pointwise. False: no expression, or types that kernels lack.
bool lower_pointwise(LowerContext& context);

// An expression of the node's own inputs, plain ones, that are seen with the extents of `inputs` and `result`: for
// operands that broadcast in a way of their own. False as above.
bool lower_as_expression(LowerContext& context, const Expression& expression, const std::vector<TensorType>& inputs,
                         const TensorType& result);

}  // namespace lathe
