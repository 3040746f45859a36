#pragma once
// From a node that is a matrix product to the steps that run it.
#include "ops/gemm/matmul_shape.h"
#include "ops/gemm/product_steps.h"
#include "ops/lower.h"

namespace lathe {

// output 0 = alpha * op(input 0) * op(input 1) + beta * input 2, and the node's epilogue behind it.
struct ProductForm {
  bool transpose_a = false, transpose_b = false;  // of matrices
  float alpha = 1, beta = 1;
  // In what order the product takes the axes of its inputs, and the output those of the product; empty: as they are.
  std::vector<int64_t> a_perm = {}, b_perm = {}, y_perm = {};
};

// False: types that the kernels lack. `shape` is that of op(input 0) * op(input 1).
bool lower_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form);

// output = epilogue(A * B) for each index of `batch`, with operands that lie in memory in any way that the kernels can
// walk.
struct StridedProduct {
  Dims batch;
  int64_t m = 1, n = 1, k = 1;
  // Elements to step along batch... and m (A, C), along batch..., k and n (B). k is innermost in A, n in C, one of both
  // in B (unless they have one element).
  std::vector<int64_t> a_strides, b_strides, c_strides;
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none;
  ValueId constant_b = ValueId::none;  // the constant that `b` holds, to be packed ahead of time
  std::optional<GemmEpilogue> epilogue;
  std::vector<ProductInput> inputs;  // of the epilogue
};

// False: the kernels cannot be emitted. Requires: extents > 0, plain float32, a node whose epilogue, if any, is the
// product's.
bool lower_strided_product(LowerContext& context, const StridedProduct& product);

}  // namespace lathe
