#pragma once
// The steps that bring operands of an integer product into the form that the kernels read, and the terms that zero
// points add to its sums.
#include <memory>

#include "ops/int8/int8_lowering.h"

namespace lathe {

struct PackedB {
  BufferId buffer = BufferId::none;
  Tensor weights;  // when packed ahead
};

// Ahead, or by a step where B is no constant.
PackedB packed_b(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source);

// The initial term of each column; of crossed products, what crossing adds.
BufferId column_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, const PackedB& b);
// The step that sums up the rows of A and multiplies by what B's zero point leaves.
BufferId row_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source);

// The step that brings A's rows into whole groups. `terms`: of the rows, where products are crossed.
BufferId copied_a(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source,
                  BufferId terms);

// The step that finds large bytes in the rows at `a`: gives Int8Operands::large.
BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride);

}  // namespace lathe
