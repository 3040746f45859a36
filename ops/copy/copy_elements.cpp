#include "ops/copy/copy_elements.h"

#include <algorithm>
#include <cstring>

#include "lathe/error.h"
#include "src/base/check.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

struct Bytes16 {
  uint64_t halves[2];
};

template <class Body>
void with_element_type(DType dtype, Body body) {
  if (dtype == DType::string) return body(std::string());
  switch (bits_of(dtype)) {
    case 8:
      return body(uint8_t());
    case 16:
      return body(uint16_t());
    case 32:
      return body(uint32_t());
    case 64:
      return body(uint64_t());
    case 128:
      return body(Bytes16());
    default:
      LATHE_CHECK(false, "an element type of whole bytes");
  }
}

template <class T>
void move_axes(const T* from, T* to, std::span<const MoveAxis> axes) {
  if (axes.empty()) {
    *to = *from;
    return;
  }
  const MoveAxis& axis = axes.front();
  if (axes.size() > 1) {
    for (int64_t i = 0; i < axis.count; ++i) {
      move_axes(from + i * axis.from_stride, to + i * axis.to_stride, axes.subspan(1));
    }
  } else if (axis.from_stride == 1 && axis.to_stride == 1) {
    std::copy_n(from, axis.count, to);
  } else if (axis.from_stride == 0 && axis.to_stride == 1) {
    std::fill_n(to, axis.count, T(*from));
  } else {
    for (int64_t i = 0; i < axis.count; ++i) to[i * axis.to_stride] = from[i * axis.from_stride];
  }
}

struct PickAxis {
  const std::vector<int64_t>* table;
  int64_t from_stride, to_stride;
};

template <class T>
void pick_axes(const T* from, T* to, std::span<const PickAxis> axes) {
  if (axes.empty()) {
    *to = *from;
    return;
  }
  const PickAxis& axis = axes.front();
  for (size_t i = 0; i < axis.table->size(); ++i) {
    const int64_t index = (*axis.table)[i];
    if (index < 0) continue;
    pick_axes(from + index * axis.from_stride, to + static_cast<int64_t>(i) * axis.to_stride, axes.subspan(1));
  }
}

}  // namespace

Tensor spread_elements(const Tensor& tensor) {
  const int bits = tensor.dtype() == DType::string ? 8 : bits_of(tensor.dtype());
  if (bits >= 8) return tensor;
  Tensor spread(DType::u8, tensor.dims());
  const auto* packed = static_cast<const uint8_t*>(tensor.raw());
  auto* out = static_cast<uint8_t*>(spread.mutable_raw());
  const int64_t per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    out[i] = static_cast<uint8_t>((packed[i / per_byte] >> (i % per_byte * bits)) & mask);
  }
  return spread;
}

Tensor pack_elements(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const int bits = bits_of(dtype);
  LATHE_CHECK(bits > 0 && bits < 8 && tensor.dtype() == DType::u8, "a spread sub-byte tensor");
  Tensor packed(dtype, tensor.dims());
  const auto* in = static_cast<const uint8_t*>(tensor.raw());
  auto* out = static_cast<uint8_t*>(packed.mutable_raw());
  const int64_t per_byte = 8 / bits;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    out[i / per_byte] = static_cast<uint8_t>(out[i / per_byte] | (in[i] << (i % per_byte * bits)));
  }
  return packed;
}

size_t whole_element_bytes(DType dtype) {
  if (dtype == DType::string) return sizeof(std::string);
  return static_cast<size_t>(bits_of(dtype)) / 8;
}

void move_elements(const Tensor& from, int64_t from_offset, Tensor& to, int64_t to_offset,
                   std::span<const MoveAxis> axes) {
  LATHE_CHECK(from.dtype() == to.dtype(), "equal element types");
  // An axis without elements means that nothing moves, and that offsets may point past the end.
  for (const MoveAxis& axis : axes) {
    if (axis.count == 0) return;
  }
  with_element_type(from.dtype(), [&](auto element) {
    using T = decltype(element);
    move_axes(static_cast<const T*>(from.raw()) + from_offset, static_cast<T*>(to.mutable_raw()) + to_offset, axes);
  });
}

void pick_elements(const Tensor& from, Tensor& to, std::span<const std::vector<int64_t>> tables) {
  LATHE_CHECK(from.dtype() == to.dtype(), "equal element types");
  if (to.size() == 0) return;
  const std::vector<int64_t> from_strides = strides_of(from.dims()), to_strides = strides_of(to.dims());
  std::vector<PickAxis> axes;
  for (size_t i = 0; i < tables.size(); ++i) axes.push_back({&tables[i], from_strides[i], to_strides[i]});
  with_element_type(from.dtype(), [&](auto element) {
    using T = decltype(element);
    pick_axes(static_cast<const T*>(from.raw()), static_cast<T*>(to.mutable_raw()), std::span<const PickAxis>(axes));
  });
}

std::vector<int64_t> strides_of(const Dims& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(dims[i], 1);
  return strides;
}

Tensor make_output(const ReferenceContext& context, DType dtype, Dims dims) {
  const std::string place = "node '" + context.node.name + "': ";
  try {
    const size_t bytes = dtype == DType::string
                             ? checked_multiply(static_cast<size_t>(checked_elements(dims)), sizeof(std::string))
                             : checked_bytes(dtype, dims);
    if (bytes <= context.limits.tensor_bytes) return Tensor(dtype, dims);
  } catch (const Error& error) {  // no number, or no memory, for so many
    throw Error(error.code(), place + error.what());
  }
  throw Error(ErrorCode::limit, place + "its output of " + to_string(dims) + " elements passes the limit of " +
                                    std::to_string(context.limits.tensor_bytes) + " bytes for one tensor");
}

}  // namespace lathe
