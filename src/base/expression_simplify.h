#pragma once
#include "src/base/expression.h"

namespace lathe {

// An equal expression with less to compute: constants folded and joined ((x * 2) * 3, (x + 1) + 2), division by a
// constant as multiplication, small powers as products, common parts once, nothing that has no effect. Inputs keep
// their numbers. Where results decide or are rounded (comparisons, floor, quantization) only exact rewrites are made;
// elsewhere a result may differ by roundings of the same size as its own.
Expression simplified(const Expression& expression);

}  // namespace lathe
