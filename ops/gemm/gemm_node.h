#pragma once
// What the product of a node is, before any plan is chosen: extents, where the operands lie, what is done behind it.
#include <optional>
#include <vector>

#include "ops/gemm/gemm_lower.h"
#include "ops/gemm/gemm_product.h"

namespace lathe {

// One operand of the epilogue: its buffer, and elements to step along batch..., m, n of the product.
struct ExtraInput {
  ValueId value = ValueId::none;
  std::vector<int64_t> strides;
  bool covers_output = false;  // every element once, in the output's order
};

struct ProductNode {
  MatMulShape shape;
  ProductForm form;
  Expression expression;  // of the product and `extra`
  std::vector<ExtraInput> extra;
  // Elements to step along batch... and m (A, C), along batch..., k and n (B).
  std::vector<int64_t> a_strides, b_strides, c_strides;

  GemmOperandB b_form(bool is_packed) const;
  int64_t b_row_stride() const;  // of B as it lies in memory
};

// Can axes `batch..., m` with these strides be walked as one axis? Gives its stride.
std::optional<int64_t> joint_stride(const Dims& batch, int64_t m, const std::vector<int64_t>& strides);

// nullopt: types or orders of axes that the kernels lack. `folds_alpha`: alpha goes into packed weights.
std::optional<ProductNode> describe_product(const LowerContext& context, const MatMulShape& shape,
                                            const ProductForm& form, bool folds_alpha);

// Where each matrix of the batch lies. `packed_matrix`: elements of one packed B; 0: B lies by its strides.
std::vector<GemmOffsets> batch_offsets(const ProductNode& product, int64_t packed_matrix);

}  // namespace lathe
