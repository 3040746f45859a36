#pragma once
#include "ops/lower.h"

namespace lathe {

// The step of a lathe::Attention. False: types or orders of axes that the kernels lack.
bool lower_attention_views(LowerContext& context);

}  // namespace lathe
