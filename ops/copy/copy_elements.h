#pragma once
// Plain movement of elements of any type: what the references of Transpose, Slice, Concat, ... are made of.
#include <span>
#include <vector>

#include "graph/op_schema.h"
#include "lathe/tensor.h"

namespace lathe {

// Packed sub-byte elements one to a byte (uint8, raw bits); a tensor of another type is returned as it is.
Tensor spread_elements(const Tensor& tensor);
// The inverse of spread_elements; returns `tensor` itself when it already has type `dtype`.
Tensor pack_elements(const Tensor& tensor, DType dtype);
// Bytes of one element of a type whose elements are whole bytes; sizeof(std::string) for strings.
size_t whole_element_bytes(DType dtype);

// An axis of a nest of loops that copies; strides in elements, may be 0 (from) or negative.
struct MoveAxis {
  int64_t count = 0, from_stride = 0, to_stride = 0;
};
// to[to_offset + sum i * to_stride] = from[from_offset + sum i * from_stride] for all indices of all axes.
// Requires: equal element types, not sub-byte; every index lies within its tensor.
void move_elements(const Tensor& from, int64_t from_offset, Tensor& to, int64_t to_offset,
                   std::span<const MoveAxis> axes);
// Element [i, j, ...] of `to` becomes element [tables[0][i], tables[1][j], ...] of `from`; a negative index leaves `to`
// as it is. Requires: as above, and tables of the extents of `to`.
void pick_elements(const Tensor& from, Tensor& to, std::span<const std::vector<int64_t>> tables);

// Row-major strides in elements.
std::vector<int64_t> strides_of(const Dims& dims);
// A zeroed output. Throws Error(limit) when it would pass the session's limit for one tensor.
Tensor make_output(const ReferenceContext& context, DType dtype, Dims dims);

}  // namespace lathe
