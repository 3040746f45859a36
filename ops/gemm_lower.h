#pragma once
// From a node that is a matrix product to the steps that run it.
#include "ops/lower.h"
#include "ops/matmul_shape.h"

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

}  // namespace lathe
