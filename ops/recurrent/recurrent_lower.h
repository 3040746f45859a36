#pragma once
#include "ops/lower.h"

namespace lathe {

// RNN, GRU and LSTM of float32: the products with W over all time steps at once, then one step that walks the time with
// products by packed R and generated loops for the gates. False: other types.
bool lower_recurrent(LowerContext& context);

}  // namespace lathe
