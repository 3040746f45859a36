#pragma once
#include <cstdint>
#include <span>

#include "ops/int8/int8_lowering.h"

namespace lathe {

// One of several ways to multiply unsigned bytes whose zero point is known in the run only: for zero points in a range,
// near which most bytes are then, these are mostly small in what is multiplied.
struct ZeroRange {
  uint8_t first, last;
  Int8Dot dot;
  bool inverts_a;
};
// Of all zero points. Where weights are bytes with all their bits, and there is no VNNI.
std::span<const ZeroRange> zero_ranges();
// Weights are constant then, and packed for each way.
bool pays_by_zero(const LowerContext& context, const Int8Lowering& l, ValueId b);

}  // namespace lathe
