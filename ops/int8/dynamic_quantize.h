#pragma once
#include "ops/lower.h"

namespace lathe {

// DynamicQuantizeLinear: a pass over the input for its range, one that quantizes.
bool lower_dynamic_quantize(LowerContext& context);

}  // namespace lathe
