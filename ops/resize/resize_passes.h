#pragma once
// Lowering of Resize over any axes of a plain tensor: by rows that are picked (nearest, any element type), or axis by
// axis as weighted sums of any number of rows (linear, cubic, antialiased; float32 and bytes).
#include <vector>

#include "ops/lower.h"
#include "ops/resize/resize_axis.h"

namespace lathe {

// Input 0 to output 0 of this node; `axes` are those of the input. Requires: no axis is empty, and every output
// position has terms. False: element types or layouts that this does not know.
bool add_resize_passes(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes);

}  // namespace lathe
