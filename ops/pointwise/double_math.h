#pragma once
// Functions of float64 by vectors of AVX2. Errors below are in units of the last place, largest of those found by
// tests/ops/double_math_test.cpp.
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"

namespace lathe {

// out[i] = f(x[i]) over a row of doubles, as add_row_step runs it: input 0 steps by 1.
void exp_row(const RowOperands& row);      // 1
void log_row(const RowOperands& row);      // 1
void tanh_row(const RowOperands& row);     // 3
void sigmoid_row(const RowOperands& row);  // 3

// The lowering of a function that has such rows; other types are its expression's.
template <void (*kRow)(const RowOperands&)>
bool lower_doubles(LowerContext& context) {
  if (context.input_type(0).dtype == DType::f64) return add_row_step(context, kRow, "rows");
  return lower_pointwise(context);
}

}  // namespace lathe
