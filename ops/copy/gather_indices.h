#pragma once
// The indices of Gather and GatherElements, for inference and references.
#include "ops/shape_arguments.h"

namespace lathe {

// Indices of any extents as int64, each counted from the front and within [0, extent).
inline std::vector<int64_t> indices_within(const ReferenceContext& context, const Tensor& indices, int64_t extent) {
  std::vector<int64_t> values =
      integers_of(context, indices.rank() > 1 ? indices.reshaped({indices.size()}) : indices, "input 1 (indices)");
  for (int64_t& index : values) {
    if (index < -extent || index >= extent) {
      context.fail("index " + std::to_string(index) + " is out of range for an axis of " + std::to_string(extent));
    }
    if (index < 0) index += extent;
  }
  return values;
}

inline void check_index_type(InferContext& context) {
  if (!context.has_input(1)) context.fail("input 1 (indices) is missing");
  const DType dtype = context.input(1).dtype;
  if (dtype != DType::i64 && dtype != DType::i32) {
    context.fail("input 1 (indices) is " + std::string(name_of(dtype)) + ", expected int32 or int64");
  }
}

}  // namespace lathe
