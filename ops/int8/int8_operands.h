#pragma once
// The steps that bring operands of an integer product into the form that the kernels read, and the terms that zero
// points add to its sums.
#include <memory>

#include "ops/int8/int8_node.h"
#include "ops/int8/int8_pack.h"
#include "ops/lower.h"

namespace lathe {

// What the steps of one product need to know; they keep it.
struct Int8Lowering {
  bool a_is_signed = false, b_is_signed = false;
  Int8Node node;
  Int8Problem problem = {};
  GemmPlan plan = {};
  Int8PanelFormat format = {};

  int64_t padded() const { return format.padded(problem.n); }
  int64_t matrix_bytes() const { return format.bytes(problem.k, problem.n); }
  int64_t b_count() const { return static_cast<int64_t>(node.b.offsets.size()); }
  int64_t a_count() const { return static_cast<int64_t>(node.a.offsets.size()); }
  ByteMatrix b_matrix(const void* data, int64_t i) const {
    return {static_cast<const char*>(data) + node.b.offsets[static_cast<size_t>(i)],
            b_is_signed,
            problem.k,
            problem.n,
            node.b.row_stride,
            node.b.column_stride};
  }
  ByteMatrix a_matrix(const void* data, int64_t i) const {
    return {static_cast<const char*>(data) + node.a.offsets[static_cast<size_t>(i)],
            a_is_signed,
            node.shape.m,
            problem.k,
            node.a.row_stride,
            1};
  }
  // What packing adds to B's zero point.
  int b_shift() const { return format.shift(b_is_signed); }
};

struct PackedB {
  BufferId buffer = BufferId::none;
  Tensor weights;  // when packed ahead
};

PackedB pack_ahead(const Int8Lowering& l, const LowerContext& context, ValueId source);
// The step that packs a B that is not constant.
PackedB pack_at_run(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source);

// The initial term of each column; of crossed products, what crossing adds.
BufferId column_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, const PackedB& b);
// The step that sums up the rows of A and multiplies by what B's zero point leaves.
BufferId row_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source);

// The step that brings A's rows into whole groups. `terms`: of the rows, where products are crossed.
BufferId copied_a(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source,
                  BufferId terms);

}  // namespace lathe
