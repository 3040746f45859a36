#pragma once
// A product of integers on its way to steps: its node, its problem and, when one is chosen, its plan.
#include <array>
#include <optional>
#include <vector>

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
  bool inverts_a = false;  // A's bytes x, unsigned ones, are multiplied as 255 - x, and the sums are negative
  int most_together = kMostOfNeighbours;  // of Int8Dot::u8s8_halved: see ops/int8/large_bytes.h

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
  // What copying adds to A's elements, and so to its zero point.
  int a_shift() const { return shift_of_a(problem.dot, a_is_signed); }
  // A's zero point as the kernels see it.
  int32_t zero_of_copied(int32_t a_zero) const { return (inverts_a ? 255 - a_zero : a_zero) + a_shift(); }
  // A's rows into whole groups, in a step ahead.
  bool copies_a() const { return is_wide(problem.dot) || problem.k % 4 != 0 || a_shift() != 0 || inverts_a; }
  int64_t result_bytes() const { return node.expression.nodes.empty() ? 4 : bits_of(node.expression.output) / 8; }
};

// Without a plan. nullopt: types or zero points that the kernels lack.
std::optional<Int8Lowering> describe_int8_product(const LowerContext& context, const MatMulShape& shape,
                                                  const Int8Form& form);
// The same product by other kernels. `inverts_a`: requires an expression.
Int8Lowering described_by(const LowerContext& context, const Int8Form& form, Int8Lowering l, Int8Dot dot,
                          bool inverts_a);
// The plan and what depends on it.
void set_plan(Int8Lowering& l, const GemmPlan& plan);

// Of all products of the batch.
std::vector<Int8Offsets> offsets_of(const Int8Lowering& l, const LowerContext& context);

// Inputs of the epilogue.
struct Int8Inputs {
  std::vector<BufferId> buffers;
  std::array<int64_t, kMaxInt8Inputs> strides = {};  // bytes from row to row
};
// `changes`: Int8Product::changes().
Int8Inputs bind_inputs(const Int8Lowering& l, const LowerContext& context, const std::vector<InputChange>& changes);

}  // namespace lathe
