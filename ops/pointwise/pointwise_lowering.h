#pragma once
// Lowering of elementwise nodes: their expression, with what was fused behind it, as one generated loop.
#include <utility>
#include <vector>

#include "ops/lower.h"

namespace lathe {

// For every operator with an `express`, and lathe::Pointwise. False: no expression, or types that kernels lack.
bool lower_pointwise(LowerContext& context);

// Operands that are not in memory: each pixel of another value, so often along each axis behind the channels.
struct RepeatedOperands {
  std::vector<int64_t> repeats;
  std::vector<std::pair<ValueId, ValueId>> small;  // the operand, and the value whose pixels it repeats
};
// As lower_pointwise. Requires: these operands have the result's extents, and all are blocked alike.
bool lower_pointwise_with(LowerContext& context, const RepeatedOperands& repeated);

// An expression of the node's own inputs, plain ones, that are seen with the extents of `inputs` and `result`: for
// operands that broadcast in a way of their own. False as above.
bool lower_as_expression(LowerContext& context, const Expression& expression, const std::vector<TensorType>& inputs,
                         const TensorType& result);

}  // namespace lathe
