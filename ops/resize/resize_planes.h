#pragma once
// Lowering of Resize to the nearest over one or two neighbouring axes of float32.
#include <vector>

#include "ops/lower.h"
#include "ops/resize/resize_axis.h"

namespace lathe {

// Input 0 to output 0 of this node; `axes` are those of the input. The resized axes lie before pixels of any number of
// elements: blocks of channels, or channels behind the picture, or single elements. False: other axes, element types.
bool add_nearest_planes(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes);

}  // namespace lathe
