#include "ops/value_rows.h"

#include "src/base/checked_size.h"

namespace lathe {

ValueRows ValueRows::of(const TensorType& type) {
  const int64_t lanes = type.layout.channel_block;
  if (lanes == 0) return {.rows = checked_elements(type.extents())};
  const Dims dims = type.storage_dims();
  const int64_t pixels = checked_elements(Dims(dims.begin() + 2, dims.end() - 1));
  const int64_t left = type.dims[1].extent % lanes;
  return {
      .lanes = lanes, .rows = pixels, .period = dims[1], .valid = left == 0 ? lanes : left, .runs = dims[0] * dims[1]};
}

}  // namespace lathe
