#pragma once
// NumPy's broadcasting, with what stood for it before opset 7: the attributes `broadcast` and `axis`, and slopes of
// PRelu, which belonged to axis 1 when they had one axis.
#include <span>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// The extents of operand `i` of `node`, for broadcasting by NumPy's rule: as they are, but for a second operand that an
// old operator aligns inside the first, which gets trailing ones. `rank`: of the first operand.
Dims aligned_dims(const Node& node, int i, Dims dims, int rank);
// True when that may change anything: such a node cannot become a part of an expression.
bool has_legacy_alignment(const Node& node);

// The broadcast of all operands' extents. Throws Error(invalid_argument) naming the node.
Dims broadcast_dims(const Node& node, std::span<const Dims> operands);
// The same for inference: unknown extents stay unknown where they must. Fails as the context does.
TensorType broadcast_types(const InferContext& context, DType dtype, std::span<const TensorType> operands);

// Elements to step for one step along each axis of `result`, 0 where the operand is repeated.
std::vector<int64_t> broadcast_strides(const Dims& operand, const Dims& result);

// Walks the rows (innermost axis) of a result with any number of operands.
class BroadcastRows {
 public:
  BroadcastRows(const Dims& result, std::span<const Dims> operands);
  bool done() const { return row_ >= rows_; }
  void next();
  int64_t length() const { return length_; }
  int64_t begin() const { return row_ * length_; }  // in the result
  int64_t begin(size_t operand) const { return offsets_[operand]; }
  int64_t stride(size_t operand) const { return strides_[operand].back(); }

 private:
  Dims dims_;
  std::vector<std::vector<int64_t>> strides_;
  std::vector<int64_t> offsets_, index_;
  int64_t length_ = 1, rows_ = 1, row_ = 0;
};

}  // namespace lathe
