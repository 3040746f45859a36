#include "ops/int8/int8_by_zero.h"

#include <array>

namespace lathe {

// Of activations of a MiniLM (norms, mixed values, GELU) behind DynamicQuantizeLinear at most 15 % of the parts are
// large by these borders; those of norms lie from 32 to 124, and real BERTs' up to 200.
std::span<const ZeroRange> zero_ranges() {
  static constexpr std::array<ZeroRange, 3> kRanges = {{{0, 100, Int8Dot::u8s8_halved, false},
                                                        {101, 154, Int8Dot::s8u8_halved, false},
                                                        {155, 255, Int8Dot::u8s8_halved, true}}};
  return kRanges;
}

bool pays_by_zero(const LowerContext& context, const Int8Lowering& l, ValueId b) {
  const Int8Node& node = l.node;
  const bool is_open = !node.a_zero.is_known() && node.a_zero.is_scalar() && node.a_zero.dtype == DType::u8;
  return is_open && is_wide(l.problem.dot) && has_dot(context.target.isa, Int8Dot::u8s8_halved) && !l.a_is_signed &&
         l.b_is_signed && node.b_zero.is_zero() && context.graph.value(b).is_constant() &&
         !node.expression.nodes.empty() && node.shape.batches() == 1 && node.shape.m > kFewRowsOfBytes;
}

}  // namespace lathe
