#pragma once
// Windows over pictures as the attributes of a node say, checked. (ops/window.h has those of convolutions and pools.)
#include <string>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// Windows over `spatial` axes as the attributes of a node say.
struct Windows {
  std::vector<int64_t> strides, pads, dilations;  // pads: all begins, then all ends
};

template <class Context>
std::vector<int64_t> list_attribute(const Context& context, const char* name, size_t count, int64_t fallback,
                                    int64_t least) {
  std::vector<int64_t> values = context.node.attributes.get_ints(name);
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count)
    context.fail(std::string("attribute '") + name + "' needs " + std::to_string(count) + " values");
  for (const int64_t value : values) {
    if (value < least || value > (int64_t{1} << 31)) {
      context.fail(std::string("attribute '") + name + "' has the value " + std::to_string(value));
    }
  }
  return values;
}

template <class Context>
Windows windows_of(const Context& context, size_t spatial) {
  return {list_attribute(context, "strides", spatial, 1, 1), list_attribute(context, "pads", 2 * spatial, 0, 0),
          list_attribute(context, "dilations", spatial, 1, 1)};
}

// Windows that fit along an axis; negative or zero: none.
inline int64_t window_count(const Windows& windows, size_t axis, int64_t extent, int64_t kernel) {
  const size_t spatial = windows.strides.size();
  const int64_t room =
      extent + windows.pads[axis] + windows.pads[axis + spatial] - windows.dilations[axis] * (kernel - 1) - 1;
  return room < 0 ? 0 : room / windows.strides[axis] + 1;
}

}  // namespace lathe
