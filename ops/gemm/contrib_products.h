#pragma once
// Products of quantized matrices, as com.microsoft's operators are made of them.
#include "ops/expansion.h"

namespace lathe {

struct IntegerProduct {
  ValueId a, a_scale, a_zero_point = ValueId::none;
  ValueId b, b_scale, b_zero_point = ValueId::none;
  ValueId bias = ValueId::none;
};

// (a - a_zero_point) (b - b_zero_point) * a_scale * b_scale + bias, of the scales' type. b_scale and b_zero_point are
// one for all, or one for each column.
ValueId add_integer_product(ExpandContext& context, const IntegerProduct& product);

}  // namespace lathe
