#pragma once
// Nearest Resize over any axes of a plain tensor of whole-byte elements: rows of the result are picked from rows of the
// input.
#include <vector>

#include "ops/lower.h"
#include "ops/resize/resize_axis.h"

namespace lathe {

// Input 0 to output 0 of this node. Requires: no axis is empty, and every output position has a term. False: elements
// that are no whole bytes, layouts or extents that this does not know.
bool add_picked_rows(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes);

}  // namespace lathe
