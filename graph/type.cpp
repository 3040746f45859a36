#include "graph/type.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/checked_size.h"

namespace lathe {

TensorType TensorType::of(DType dtype, const Dims& extents) {
  TensorType type{dtype, true, {}, {}};
  type.dims.reserve(extents.size());
  for (int64_t extent : extents) type.dims.push_back({extent, {}});
  return type;
}

bool TensorType::is_static() const {
  return has_rank && std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.known(); });
}

Dims TensorType::extents() const {
  LATHE_CHECK(is_static(), "extents of " + to_string(*this));
  Dims extents;
  extents.reserve(dims.size());
  for (const Dim& dim : dims) extents.push_back(dim.extent);
  return extents;
}

Dims TensorType::storage_dims() const {
  Dims extents = this->extents();
  if (layout.channel_block == 0) return extents;
  LATHE_CHECK(extents.size() >= 2, "blocked channels of " + to_string(*this));
  const int64_t block = layout.channel_block;
  extents[1] = extents[1] / block + (extents[1] % block != 0 ? 1 : 0);
  extents.push_back(block);
  return extents;
}

size_t TensorType::storage_bytes() const { return checked_bytes(dtype, storage_dims()); }

std::string to_string(const TensorType& type) {
  std::string text(name_of(type.dtype));
  if (!type.has_rank) return text + "[...]";
  text += '[';
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    if (i != 0) text += ',';
    text += dim.known() ? std::to_string(dim.extent) : dim.symbol.empty() ? "?" : dim.symbol;
  }
  text += ']';
  if (type.layout.channel_block != 0) text += "{c" + std::to_string(type.layout.channel_block) + "}";
  return text;
}

}  // namespace lathe
