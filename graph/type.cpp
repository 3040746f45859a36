#include "graph/type.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

std::shared_ptr<const ContainerType> contained(ContainerType::Kind kind, TensorType element,
                                               DType key = DType::undefined) {
  return std::make_shared<const ContainerType>(ContainerType{kind, std::move(element), key});
}

std::string container_text(const ContainerType& container) {
  const std::string element = to_string(container.element);
  switch (container.kind) {
    case ContainerType::Kind::sequence:
      return "seq(" + element + ")";
    case ContainerType::Kind::optional:
      return "optional(" + element + ")";
    case ContainerType::Kind::map:
      return "map(" + std::string(name_of(container.key)) + "," + element + ")";
  }
  return "object";
}

}  // namespace

TensorType TensorType::of(DType dtype, const Dims& extents) {
  if (dtype == DType::object) return unranked(dtype);
  TensorType type{dtype, true, {}, {}};
  type.dims.reserve(extents.size());
  for (int64_t extent : extents) type.dims.push_back({extent, {}});
  return type;
}

bool TensorType::is_static() const {
  return has_rank && std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.known(); });
}

TensorType TensorType::sequence_of(TensorType element) {
  return {DType::object, false, {}, {}, contained(ContainerType::Kind::sequence, std::move(element))};
}

TensorType TensorType::optional_of(TensorType element) {
  return {DType::object, false, {}, {}, contained(ContainerType::Kind::optional, std::move(element))};
}

TensorType TensorType::map_of(DType key, TensorType element) {
  return {DType::object, false, {}, {}, contained(ContainerType::Kind::map, std::move(element), key)};
}

bool TensorType::fits_buffer() const { return is_static() && dtype != DType::string; }

bool TensorType::operator==(const TensorType& other) const {
  if (dtype != other.dtype || has_rank != other.has_rank || dims != other.dims || layout != other.layout) return false;
  if (container == other.container) return true;
  return container != nullptr && other.container != nullptr && *container == *other.container;
}

bool may_agree(const TensorType& a, const TensorType& b) {
  if (a.dtype == DType::undefined || b.dtype == DType::undefined) return true;
  if (!a.is_object() && !b.is_object()) return a.dtype == b.dtype;
  if ((a.is_object() && !a.container) || (b.is_object() && !b.container)) return true;
  const auto is_optional = [](const TensorType& type) {
    return type.container && type.container->kind == ContainerType::Kind::optional;
  };
  if (is_optional(a)) return may_agree(a.container->element, is_optional(b) ? b.container->element : b);
  if (is_optional(b)) return may_agree(a, b.container->element);
  return a.container && b.container && a.container->kind == b.container->kind && a.container->key == b.container->key &&
         may_agree(a.container->element, b.container->element);
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
  if (type.container != nullptr) return container_text(*type.container);
  std::string text(name_of(type.dtype));
  if (type.is_object()) return text;
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
