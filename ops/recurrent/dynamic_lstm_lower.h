#pragma once
#include "ops/lower.h"

namespace lathe {

// com.microsoft's DynamicQuantizeLSTM: X is rounded to bytes by the range of all of it and multiplied with W for all
// time steps at once; then one step walks the time, in which H is rounded by its range at every step.
bool lower_dynamic_lstm(LowerContext& context);

}  // namespace lathe
