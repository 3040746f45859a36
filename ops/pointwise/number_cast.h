#pragma once
// Any element type as numbers and back: Cast, and the references of quantization.
#include <cstdint>
#include <string>

#include "lathe/tensor.h"
#include "ops/small_floats.h"

namespace lathe {

// Element by element, one to a byte for packed types (ops/copy/copy_elements.h: spread_elements).
// Reads an element of any real type, integer or bool as float64.
double number_at(const Tensor& tensor, DType dtype, int64_t i);

// The nearest value of an integer type, rounded to even and clamped to its range. Sub-byte types: one to a byte, the
// unused high bits zero.
void store_saturated(Tensor& tensor, DType dtype, int64_t i, double value);

// All elements converted as Cast does: towards zero and modulo 2^bits for integers. Throws Error(unsupported) for
// complex types, Error(invalid_argument) for a string that is no number.
Tensor cast_elements(const Tensor& tensor, DType to, SmallFloatRounding rounding);

}  // namespace lathe
