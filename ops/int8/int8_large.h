#pragma once
// Where bytes are large in the rows of a product of integers, so that they are halved (Int8Dot::u8s8_halved).
#include <memory>

#include "ops/int8/int8_lowering.h"

namespace lathe {

// Parts of a row that have their own code where bytes are large: GemmPlan::k_unroll groups each.
int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan);

// large[part] = 1 for each part, of `part_bytes` (the last one may be shorter), of a row's `bytes`, an even number,
// that has neighbours which are large together.
void find_large_parts(const uint8_t* row, bool is_signed, int64_t bytes, int64_t part_bytes, uint8_t* large) noexcept;

// The step that finds them in the rows at `a`: gives Int8Operands::large.
BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride);

}  // namespace lathe
