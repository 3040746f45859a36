#pragma once
// Lowering of elementwise nodes: their expression, with what was fused behind it, as one generated loop.
#include "ops/lower.h"

namespace lathe {

// For every operator with an `express`, and lathe::Pointwise. False: no expression, or types that kernels lack.
bool lower_pointwise(LowerContext& context);

}  // namespace lathe
