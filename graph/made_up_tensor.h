#pragma once
#include "lathe/tensor.h"

namespace lathe {

// Elements for a value of which only the type is known: small numbers, none of them 0 for long.
Tensor made_up_tensor(DType dtype, const Dims& dims);

}  // namespace lathe
