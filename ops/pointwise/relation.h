#pragma once
#include "ops/op_def.h"

namespace lathe {

// A bool of two operands that broadcast: comparisons and logic.
OpDef relation(std::string_view name, int since, ReferenceFn* reference, ExpressFn* express, LowerFn* lower);

}  // namespace lathe
