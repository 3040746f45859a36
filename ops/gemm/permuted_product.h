#pragma once
// Inference and reference of products whose operands are taken with their axes in another order.
#include <vector>

#include "graph/op_schema.h"
#include "ops/gemm/matmul_shape.h"
#include "src/base/axis_order.h"

namespace lathe {

// The type with its axes in the order of the attribute. Fails as the context does when that is none.
TensorType permuted_type(const InferContext& context, TensorType type, const char* attribute);

// The elements of a tensor of extents `dims` with its axes in the order `perm`.
std::vector<double> permuted_elements(const std::vector<double>& values, const Dims& dims, const AxisOrder& perm);

// All matrices of the batch by float64, of elements with their axes in order.
std::vector<double> multiply(const MatMulShape& shape, const std::vector<double>& a, const std::vector<double>& b);

}  // namespace lathe
