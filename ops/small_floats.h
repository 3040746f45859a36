#pragma once
// Floating point of 8 and 4 bits, one element to a byte (ops/copy/copy_elements.h spreads packed ones).
#include <cstdint>

#include "lathe/dtype.h"

namespace lathe {

bool is_small_float(DType dtype);  // float8 of every kind and float4e2m1
double small_float_value(DType dtype, uint8_t bits);

enum class ScaleRounding : uint8_t { up, down, nearest };  // of float8e8m0, which has powers of two only

struct SmallFloatRounding {
  bool saturates = true;  // out of range: the largest value; otherwise inf or NaN
  ScaleRounding scale = ScaleRounding::up;
};
// To nearest even. The value must be exact, or rounded at most once before.
uint8_t to_small_float(DType dtype, double value, SmallFloatRounding rounding = {});

}  // namespace lathe
