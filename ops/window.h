#pragma once
// Sliding windows over the spatial axes, as convolutions and pooling have them: attributes, padding and extents.
#include <string>
#include <vector>

#include "graph/type.h"

namespace lathe {

class InferContext;
struct Node;

struct Window {
  Dims kernel, strides, dilations, pads_begin, pads_end;  // one for each spatial axis
  enum class AutoPad : uint8_t { explicit_pads, same_upper, same_lower, valid } auto_pad = AutoPad::explicit_pads;

  size_t axes() const { return kernel.size(); }
  // Input pixels that one window spans.
  int64_t span(size_t axis) const { return (kernel[axis] - 1) * dilations[axis] + 1; }
};

// Reads the attributes. `kernel`: the window when the node has no kernel_shape. Throws std::invalid_argument with what
// is wrong; callers turn it into an error that names the node.
Window read_window(const Node& node, size_t axes, const Dims& kernel);

// Sets explicit pads for an automatic padding, now that the input's extents are known.
void resolve_pads(Window& window, const Dims& spatial);
// Output extent of one axis, >= 0. Requires: pads are explicit. `rounds_up`: ceil_mode of pooling, where windows that
// begin in the padding behind the input are dropped. Throws std::invalid_argument when the window does not fit.
int64_t window_output(const Window& window, size_t axis, int64_t in, bool rounds_up = false);
// The same with extents that may be unknown; an axis that keeps its extent keeps its symbol.
std::vector<Dim> window_outputs(const Window& window, const std::vector<Dim>& spatial, bool rounds_up = false);

}  // namespace lathe
