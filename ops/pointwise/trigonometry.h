#pragma once
// Tangent, inverse and hyperbolic functions as expressions of float32: polynomials where these are accurate, else by
// way of exp, log and sqrt. Off by a few units of the last place; tan within |x| <= 1e4.
#include "ops/pointwise/elementwise.h"

namespace lathe::trigonometry {

int tan(ExpressionWriter& w, int x);
int asin(ExpressionWriter& w, int x);
int acos(ExpressionWriter& w, int x);
int atan(ExpressionWriter& w, int x);
int sinh(ExpressionWriter& w, int x);
int cosh(ExpressionWriter& w, int x);
int asinh(ExpressionWriter& w, int x);
int acosh(ExpressionWriter& w, int x);
int atanh(ExpressionWriter& w, int x);

}  // namespace lathe::trigonometry
