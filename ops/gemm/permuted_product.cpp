#include "ops/gemm/permuted_product.h"

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"

namespace lathe {

TensorType permuted_type(const InferContext& context, TensorType type, const char* attribute) {
  const AxisOrder perm = context.node.attributes.get_ints(attribute);
  if (perm.empty() || !type.has_rank) return type;
  if (!is_permutation(perm, type.dims.size())) context.fail(std::string("attribute '") + attribute + "' is no order");
  type.dims = permuted(type.dims, perm);
  return type;
}

std::vector<double> permuted_elements(const std::vector<double>& values, const Dims& dims, const AxisOrder& perm) {
  if (perm.empty()) return values;
  const std::vector<int64_t> strides = permuted(strides_of(dims), perm);
  std::vector<double> result;
  result.reserve(values.size());
  for (IndexWalk at(permuted(dims, perm)); !at.done(); at.next()) {
    int64_t from = 0;
    for (size_t i = 0; i < strides.size(); ++i) from += at.index()[i] * strides[i];
    result.push_back(values[static_cast<size_t>(from)]);
  }
  return result;
}

std::vector<double> multiply(const MatMulShape& shape, const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sums(static_cast<size_t>(shape.batches() * shape.m * shape.n), 0);
  for_each_matrix(shape, [&](int64_t a_matrix, int64_t b_matrix, int64_t matrix) {
    for (int64_t i = 0; i < shape.m; ++i) {
      double* row = sums.data() + (matrix * shape.m + i) * shape.n;
      for (int64_t p = 0; p < shape.k; ++p) {
        const double factor = a[static_cast<size_t>((a_matrix * shape.m + i) * shape.k + p)];
        const double* from = b.data() + (b_matrix * shape.k + p) * shape.n;
        for (int64_t j = 0; j < shape.n; ++j) row[j] += factor * from[j];
      }
    }
  });
  return sums;
}

}  // namespace lathe
