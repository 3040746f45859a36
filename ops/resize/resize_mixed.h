#pragma once
// Lowering of Resize by weighted sums (linear, cubic, antialiased) over any axes of float32 and bytes.
#include <vector>

#include "ops/lower.h"
#include "ops/resize/resize_axis.h"

namespace lathe {

// Input 0 to output 0 of this node; `axes` are those of the input. In channel blocks batch and channels stay. Requires:
// every output position has terms. False: element types, layouts or extents that this does not know.
bool add_mixed_resize(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes);

}  // namespace lathe
