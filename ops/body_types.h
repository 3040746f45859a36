#pragma once
// Shape inference of the operators that run bodies (If, Loop, Scan).
#include <span>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// The most that is true of both: equal extents and ranks stay, the rest becomes unknown.
TensorType common_type(const TensorType& a, const TensorType& b);

// Types of a body's outputs where its outputs [first_output, first_output + states.size()) flow back into its inputs
// [first_input, ...). Generalizes `states` until they hold for every iteration. `inputs`: types of all own formal
// inputs of the body; those of the states are overwritten.
std::vector<TensorType> infer_iterated(const InferContext& context, const Graph& body, std::vector<TensorType> inputs,
                                       size_t first_input, size_t first_output, std::vector<TensorType>& states);

// `type` with `dim` inserted at `axis`, or with the extent at `axis` taken out; unranked stays unranked, as does what
// has no such axis.
TensorType with_axis(const TensorType& type, int64_t axis, Dim dim);
TensorType without_axis(const TensorType& type, int64_t axis);

}  // namespace lathe
