#pragma once
// What the integer product of a node is, before any plan is chosen: extents, where the operands lie, zero points.
#include <optional>
#include <vector>

#include "ops/int8/int8_lower.h"
#include "ops/int8/int8_pack.h"
#include "ops/int8/int8_product.h"

namespace lathe {

// The zero points of one operand: known, or in memory when the step runs.
struct ZeroPoints {
  std::vector<int32_t> values;  // of one element when all are equal; empty: not known yet
  ValueId value = ValueId::none;
  DType dtype = DType::u8;
  int64_t count = 1;

  bool is_known() const { return !values.empty(); }
  bool is_scalar() const { return is_known() ? values.size() == 1 : count == 1; }
  bool is_zero() const { return is_known() && values.size() == 1 && values[0] == 0; }
  // `memory`: of `value`, when they are not known.
  ByteZeros view(const void* memory) const;
};

// A batch of matrices of one operand.
struct ByteOperand {
  std::vector<int64_t> offsets;  // bytes to each matrix
  int64_t row_stride = 0, column_stride = 0;
};

// One operand of the epilogue: elements to step along batch..., m, n.
struct Int8Extra {
  ValueId value = ValueId::none;
  std::vector<int64_t> strides;
};

struct Int8Node {
  MatMulShape shape;
  ByteOperand a, b;
  ZeroPoints a_zero, b_zero;
  Expression expression;     // of the sum, [the scales], `extra`; no nodes: int32 sums
  std::vector<float> scale;  // of columns, when there are several
  std::vector<Int8Extra> extra;
  std::vector<int64_t> a_matrix, b_matrix;  // by batch: which matrix of a, of b
};

// What a lathe::QuantizedMatMul multiplies.
struct QuantizedProduct {
  MatMulShape shape;
  Int8Form form;
};
// nullopt: the scale is not known.
std::optional<QuantizedProduct> quantized_product(const LowerContext& context);

// nullopt: what the kernels lack.
std::optional<Int8Node> describe_int8(const LowerContext& context, const MatMulShape& shape, const Int8Form& form);

}  // namespace lathe
