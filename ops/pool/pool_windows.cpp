#include "ops/pool/pool_windows.h"

#include <algorithm>
#include <stdexcept>

#include "ops/conv/conv_axes.h"

namespace lathe {

bool is_global_pool(const Node& node) { return node.op->name.substr(0, 6) == "Global"; }

void check_pool_rank(size_t rank) {
  if (rank < 3) throw std::invalid_argument("input 0 has rank " + std::to_string(rank) + ", expected at least 3");
}

// A window that lies in the padding alone has nothing to pool.
Window read_pool_attributes(const Node& node, size_t axes) {
  if (node.attributes.get_ints("kernel_shape").empty()) throw std::invalid_argument("kernel_shape is missing or empty");
  Window window = read_window(node, axes, {});
  for (size_t i = 0; i < axes; ++i) {
    const int64_t pad = std::max(window.pads_begin[i], window.pads_end[i]);
    if (pad >= window.span(i)) {
      throw std::invalid_argument("pads has the value " + std::to_string(pad) + ", its window spans " +
                                  std::to_string(window.span(i)) + " pixels");
    }
  }
  return window;
}

Window read_pool(const Node& node, const Dims& in) {
  check_pool_rank(in.size());
  const Dims spatial(in.begin() + 2, in.end());
  if (is_global_pool(node)) {
    const size_t axes = spatial.size();
    return {spatial, Dims(axes, 1), Dims(axes, 1), Dims(axes, 0), Dims(axes, 0)};
  }
  Window window = read_pool_attributes(node, spatial.size());
  resolve_pads(window, spatial);
  return window;
}

ConvAxis pool_axis(const Window& window, size_t axis, const Dims& in, const Dims& out) {
  return conv_axis(window, axis, in[axis + 2], out[axis + 2]);
}

ConvShape pool_windows(const LowerContext& context) {
  const Dims in = context.input_type(0).extents(), out = context.output_type(0).extents();
  const Window window = read_pool(context.node, in);
  ConvShape shape;
  shape.lanes = vector_lanes(context.target.isa);
  const size_t x = window.axes() - 1;
  shape.x = pool_axis(window, x, in, out);
  if (x > 0) shape.y = pool_axis(window, x - 1, in, out);
  return shape;
}

}  // namespace lathe
