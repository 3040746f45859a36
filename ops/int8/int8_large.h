#pragma once
// Where bytes are large in the rows of a product of integers, so that they are halved (Int8Dot::u8s8_halved).
#include <memory>

#include "ops/int8/int8_lowering.h"

namespace lathe {

// Parts of a row that have their own code where bytes are large: GemmPlan::k_unroll groups each.
int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan);

// The step that finds them in the rows at `a`: gives Int8Operands::large.
BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride);

}  // namespace lathe
