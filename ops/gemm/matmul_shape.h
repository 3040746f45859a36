#pragma once
// The extents of numpy.matmul: vectors promoted to matrices, the axes in front of the matrices broadcast.
#include <string>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// The type of a matrix product with elements of `dtype`. Fails as the context does when extents cannot match.
TensorType infer_matmul(const InferContext& context, const TensorType& a, const TensorType& b, DType dtype);

struct MatMulShape {
  Dims batch;  // broadcast extents in front of the matrices
  int64_t m = 0, n = 0, k = 0;
  bool a_is_vector = false, b_is_vector = false;
  // Matrices to step for one step along each axis of `batch`; 0: repeated.
  std::vector<int64_t> a_steps, b_steps;

  int64_t batches() const;
  Dims output_dims() const;  // without the axes of promoted vectors
  Dims full_dims() const;    // batch, m, n
};

// Throws Error(invalid_argument) naming the node when the extents do not match.
MatMulShape matmul_shape(const Node& node, Dims a, Dims b);

// Calls visit(a's matrix number, b's, the output's) for each matrix of the batch, in order.
void for_each_matrix(const MatMulShape& shape, const std::function<void(int64_t, int64_t, int64_t)>& visit);

}  // namespace lathe
