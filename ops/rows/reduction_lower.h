#pragma once
#include <cstdint>
#include <vector>

#include "ops/lower.h"

namespace lathe {

enum class Reduction : uint8_t { sum, mean, max, min, prod, sum_square, l1, l2, log_sum, log_sum_exp };

// The steps of input 0 reduced along the axes that `reduced` marks. False: types or kinds without generated code or
// loops.
bool lower_reduction(LowerContext& context, Reduction kind, const std::vector<bool>& reduced);

}  // namespace lathe
