#pragma once
// What the inference of shapes reads out of arguments: integers, axes, extents.
#include <optional>
#include <string>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// Elements of an int32 or int64 tensor of rank 0 or 1. Calls context.fail() naming `what` otherwise.
template <class Context>
std::vector<int64_t> integers_of(const Context& context, const Tensor& tensor, const char* what) {
  if (tensor.rank() > 1)
    context.fail(std::string(what) + " has rank " + std::to_string(tensor.rank()) + ", expected 1");
  std::vector<int64_t> values(static_cast<size_t>(tensor.size()));
  if (tensor.dtype() == DType::i64) {
    const auto* in = tensor.data<int64_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = in[i];
  } else if (tensor.dtype() == DType::i32) {
    const auto* in = tensor.data<int32_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = in[i];
  } else {
    context.fail(std::string(what) + " is " + std::string(name_of(tensor.dtype())) + ", expected int64");
  }
  return values;
}

// The axis counted from the front. Calls context.fail() when it is out of [-rank, rank).
template <class Context>
int64_t axis_within(const Context& context, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    context.fail("axis " + std::to_string(axis) + " is out of range for rank " + std::to_string(rank));
  }
  return axis < 0 ? axis + rank : axis;
}

// Each axis counted from the front, all different.
template <class Context>
std::vector<int64_t> axes_within(const Context& context, const std::vector<int64_t>& axes, int64_t rank) {
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  std::vector<int64_t> result;
  for (const int64_t axis : axes) {
    result.push_back(axis_within(context, axis, rank));
    if (seen[static_cast<size_t>(result.back())]) context.fail("axis " + std::to_string(axis) + " is given twice");
    seen[static_cast<size_t>(result.back())] = true;
  }
  return result;
}

// a * b; nullopt on overflow of int64 or when either is unknown (negative).
inline std::optional<int64_t> product_of(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline Dim known_dim(int64_t extent) { return Dim{extent, ""}; }

// A type of this rank with no extent known.
inline TensorType ranked(DType dtype, size_t rank) { return {dtype, true, std::vector<Dim>(rank), {}}; }

}  // namespace lathe
