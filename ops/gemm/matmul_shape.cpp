#include "ops/gemm/matmul_shape.h"

#include "lathe/error.h"
#include "ops/pointwise/broadcast.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// Matrices to step for each axis of `batch`, for an operand with the batch extents `dims`.
std::vector<int64_t> matrix_steps(const Dims& dims, const Dims& batch) { return broadcast_strides(dims, batch); }

TensorType batch_of(const TensorType& type) {
  TensorType batch{type.dtype, true, {}, {}};
  if (type.rank() > 2) batch.dims.assign(type.dims.begin(), type.dims.end() - 2);
  return batch;
}

}  // namespace

TensorType infer_matmul(const InferContext& context, const TensorType& a, const TensorType& b, DType dtype) {
  if (!a.has_rank || !b.has_rank) return TensorType::unranked(dtype);
  if (a.rank() == 0 || b.rank() == 0) context.fail("an operand is a scalar, expected a vector or more");
  const Dim& a_k = a.dims.back();
  const Dim& b_k = b.dims[b.dims.size() - (b.rank() == 1 ? 1 : 2)];
  if (a_k.known() && b_k.known() && a_k.extent != b_k.extent) {
    context.fail("cannot multiply: input 0 has " + std::to_string(a_k.extent) + " columns, input 1 " +
                 std::to_string(b_k.extent) + " rows");
  }
  const TensorType batches[] = {batch_of(a), batch_of(b)};
  TensorType result = broadcast_types(context, dtype, batches);
  if (!result.has_rank) return result;
  if (a.rank() > 1) result.dims.push_back(a.dims[a.dims.size() - 2]);
  if (b.rank() > 1) result.dims.push_back(b.dims.back());
  return result;
}

int64_t MatMulShape::batches() const { return checked_elements(batch); }

Dims MatMulShape::output_dims() const {
  Dims dims = batch;
  if (!a_is_vector) dims.push_back(m);
  if (!b_is_vector) dims.push_back(n);
  return dims;
}

Dims MatMulShape::full_dims() const {
  Dims dims = batch;
  dims.push_back(m);
  dims.push_back(n);
  return dims;
}

MatMulShape matmul_shape(const Node& node, Dims a, Dims b) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                "node '" + node.name + "' (" + (node.op ? std::string(node.op->name) : "MatMul") + "): " + what);
  };
  if (a.empty() || b.empty()) fail("an operand is a scalar, expected a vector or more");
  MatMulShape shape;
  shape.a_is_vector = a.size() == 1;
  shape.b_is_vector = b.size() == 1;
  if (shape.a_is_vector) a.insert(a.begin(), 1);
  if (shape.b_is_vector) b.push_back(1);
  shape.m = a[a.size() - 2];
  shape.k = a.back();
  shape.n = b.back();
  if (b[b.size() - 2] != shape.k) {
    fail("cannot multiply " + to_string(a) + " by " + to_string(b) + ": inner extents differ");
  }
  const Dims batches[] = {Dims(a.begin(), a.end() - 2), Dims(b.begin(), b.end() - 2)};
  shape.batch = broadcast_dims(node, batches);
  shape.a_steps = matrix_steps(batches[0], shape.batch);
  shape.b_steps = matrix_steps(batches[1], shape.batch);
  return shape;
}

void for_each_matrix(const MatMulShape& shape, const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const int64_t count = shape.batches();
  Dims index(shape.batch.size(), 0);
  int64_t a = 0, b = 0;
  for (int64_t matrix = 0; matrix < count; ++matrix) {
    visit(a, b, matrix);
    for (size_t axis = index.size(); axis-- > 0;) {
      a += shape.a_steps[axis];
      b += shape.b_steps[axis];
      if (++index[axis] < shape.batch[axis]) break;
      a -= shape.a_steps[axis] * shape.batch[axis];
      b -= shape.b_steps[axis] * shape.batch[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace lathe
