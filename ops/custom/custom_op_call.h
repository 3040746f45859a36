#pragma once
// One operator of a custom library as an OpDef: its functions called with Lathe's types.
#include <memory>

#include "lathe/custom_op.h"
#include "ops/op_def.h"

namespace lathe {

// `op` belongs to `library`, which the definition keeps loaded. Requires: names and functions are there.
OpDef custom_op_def(const LatheCustomOp& op, std::shared_ptr<void> library);

}  // namespace lathe
