// Det: determinants of the innermost two axes.
#include <cmath>
#include <utility>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer_det(InferContext& context) {
  TensorType type = context.input(0);
  if (type.has_rank) {
    if (type.rank() < 2) context.fail("input 0 has rank " + std::to_string(type.rank()) + ", expected at least 2");
    const Dim &rows = type.dims[type.dims.size() - 2], &columns = type.dims.back();
    if (rows.known() && columns.known() && rows.extent != columns.extent) {
      context.fail("input 0 is " + to_string(type) + ", its matrices are not square");
    }
    type.dims.resize(type.dims.size() - 2);
  }
  type.layout = {};
  context.set_output(0, std::move(type));
}

// By Gauss's elimination with the largest pivot of each column; `matrix` is used up.
double determinant(double* matrix, int64_t n) {
  double result = 1;
  for (int64_t column = 0; column < n; ++column) {
    int64_t pivot = column;
    for (int64_t row = column + 1; row < n; ++row) {
      if (std::fabs(matrix[row * n + column]) > std::fabs(matrix[pivot * n + column])) pivot = row;
    }
    if (matrix[pivot * n + column] == 0) return 0;
    if (pivot != column) {
      for (int64_t i = 0; i < n; ++i) std::swap(matrix[pivot * n + i], matrix[column * n + i]);
      result = -result;
    }
    result *= matrix[column * n + column];
    for (int64_t row = column + 1; row < n; ++row) {
      const double factor = matrix[row * n + column] / matrix[column * n + column];
      for (int64_t i = column; i < n; ++i) matrix[row * n + i] -= factor * matrix[column * n + i];
    }
  }
  return result;
}

void run_det(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const Dims& dims = x.dims();
  if (dims.size() < 2 || dims[dims.size() - 2] != dims.back()) {
    context.fail("input 0 is " + to_string(dims) + ", expected square matrices");
  }
  const int64_t n = dims.back();
  const Dims batch(dims.begin(), dims.end() - 2);
  Tensor result = make_output(context, x.dtype(), batch);
  std::vector<double> values = reals_of(x);
  for (int64_t i = 0; i < result.size(); ++i) store_real(result, i, determinant(values.data() + i * n * n, n));
  context.outputs[0] = std::move(result);
}

}  // namespace

std::vector<OpDef> determinant_ops() {
  return {{.schema = {.name = "Det", .since = 11, .infer = infer_det, .reference = run_det}}};
}

}  // namespace lathe::ops
