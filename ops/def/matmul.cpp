// MatMul (numpy's rules) and Gemm (alpha * A' * B' + beta * C).
#include <algorithm>
#include <array>

#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_lower.h"
#include "ops/gemm/half_lower.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/gemm/plain_product.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/pointwise/broadcast.h"

namespace lathe::ops {
namespace {

void require_matrix(const InferContext& context, int i) {
  const TensorType& type = context.input(i);
  if (type.has_rank && type.rank() != 2) {
    context.fail("input " + std::to_string(i) + " has rank " + std::to_string(type.rank()) + ", expected 2");
  }
}

void require_equal_dtypes(const InferContext& context, int inputs) {
  for (int i = 1; i < inputs; ++i) {
    if (context.has_input(i) && context.input(i).dtype != context.input(0).dtype) {
      context.fail("input " + std::to_string(i) + " is " + std::string(name_of(context.input(i).dtype)) +
                   ", input 0 is " + std::string(name_of(context.input(0).dtype)));
    }
  }
}

void require_inputs(const InferContext& context) {
  for (int i = 0; i < 2; ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
  }
}

void infer_matmul_op(InferContext& context) {
  require_inputs(context);
  require_equal_dtypes(context, 2);
  context.set_output(0, infer_matmul(context, context.input(0), context.input(1), context.input(0).dtype));
}

TensorType turned(TensorType type, bool turn) {
  if (turn && type.has_rank) std::swap(type.dims[0], type.dims[1]);
  return type;
}

void infer_gemm(InferContext& context) {
  require_inputs(context);
  require_equal_dtypes(context, 3);
  require_matrix(context, 0);
  require_matrix(context, 1);
  const TensorType a = turned(context.input(0), context.node.attributes.get_int("transA", 0) != 0);
  const TensorType b = turned(context.input(1), context.node.attributes.get_int("transB", 0) != 0);
  TensorType result = infer_matmul(context, a, b, a.dtype);
  if (!result.has_rank) {
    result = {a.dtype, true, std::vector<Dim>(2), {}};
    if (a.has_rank) result.dims[0] = a.dims[0];
    if (b.has_rank) result.dims[1] = b.dims[1];
  }
  if (context.has_input(2) && context.input(2).has_rank) {
    const TensorType operands[] = {result, context.input(2)};
    const TensorType with_bias = broadcast_types(context, a.dtype, operands);
    if (result.is_static() && with_bias.is_static() && with_bias.dims != result.dims) {
      context.fail("input 2 is " + to_string(context.input(2)) + ", it cannot broadcast to " + to_string(result));
    }
  }
  context.set_output(0, std::move(result));
}

// --- references: floating point by float64, integers wrapping around.

// c[m x n] += a[m x k] * b[k x n]; strides in elements.
template <class T>
void multiply_add(const T* a, std::array<int64_t, 2> a_stride, const T* b, std::array<int64_t, 2> b_stride, T* c,
                  int64_t m, int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const T factor = a[i * a_stride[0] + p * a_stride[1]];
      const T* row = b + p * b_stride[0];
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += factor * row[j * b_stride[1]];
    }
  }
}

std::vector<uint64_t> wrapping_elements(const Tensor& tensor) {
  const std::vector<int64_t> values = integers_of_any(tensor);
  return {values.begin(), values.end()};
}

Tensor wrapped_tensor(const ReferenceContext& context, DType dtype, Dims dims, const std::vector<uint64_t>& values) {
  Tensor result = make_output(context, dtype, std::move(dims));
  visit_native(dtype, [&]<class T>() {
    T* out = static_cast<T*>(result.mutable_raw());
    for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<T>(values[i]);
  });
  return result;
}

template <class T>
std::vector<T> multiply_batches(const MatMulShape& shape, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> c(static_cast<size_t>(shape.batches() * shape.m * shape.n), T{0});
  for_each_matrix(shape, [&](int64_t a_matrix, int64_t b_matrix, int64_t c_matrix) {
    multiply_add(a.data() + a_matrix * shape.m * shape.k, {shape.k, 1}, b.data() + b_matrix * shape.k * shape.n,
                 {shape.n, 1}, c.data() + c_matrix * shape.m * shape.n, shape.m, shape.n, shape.k);
  });
  return c;
}

void reference_matmul(ReferenceContext& context) {
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  if (a.dtype() != b.dtype()) context.fail("the element types of the operands differ");
  const MatMulShape shape = matmul_shape(context.node, a.dims(), b.dims());
  make_output(context, a.dtype(), shape.output_dims());  // checks the size before anything is multiplied
  if (is_integer(a.dtype())) {
    context.outputs[0] = wrapped_tensor(context, a.dtype(), shape.output_dims(),
                                        multiply_batches(shape, wrapping_elements(a), wrapping_elements(b)));
  } else {
    context.outputs[0] =
        tensor_of_reals(context, a.dtype(), shape.output_dims(), multiply_batches(shape, reals_of(a), reals_of(b)));
  }
}

ProductForm gemm_form(const Node& node) {
  ProductForm form;
  form.transpose_a = node.attributes.get_int("transA", 0) != 0;
  form.transpose_b = node.attributes.get_int("transB", 0) != 0;
  form.alpha = node.attributes.get_float("alpha", 1);
  form.beta = node.attributes.get_float("beta", 1);
  return form;
}

Dims turned(Dims dims, bool turn) {
  if (turn && dims.size() == 2) std::swap(dims[0], dims[1]);
  return dims;
}

template <class T>
std::vector<T> gemm(const ReferenceContext& context, const MatMulShape& shape, const ProductForm& form,
                    const std::vector<T>& a, const std::vector<T>& b, const std::vector<T>& bias, T alpha, T beta) {
  const auto order = [](int64_t rows, int64_t columns, bool turn) {
    return turn ? std::array<int64_t, 2>{1, rows} : std::array<int64_t, 2>{columns, 1};
  };
  std::vector<T> c(static_cast<size_t>(shape.m * shape.n), T{0});
  multiply_add(a.data(), order(shape.m, shape.k, form.transpose_a), b.data(), order(shape.k, shape.n, form.transpose_b),
               c.data(), shape.m, shape.n, shape.k);
  for (T& value : c) value *= alpha;
  if (bias.empty()) return c;
  const Dims operands[] = {context.inputs[2].dims()};
  for (BroadcastRows rows(shape.full_dims(), operands); !rows.done(); rows.next()) {
    for (int64_t i = 0; i < rows.length(); ++i) {
      c[static_cast<size_t>(rows.begin() + i)] += beta * bias[static_cast<size_t>(rows.begin(0) + i * rows.stride(0))];
    }
  }
  return c;
}

void reference_gemm(ReferenceContext& context) {
  const ProductForm form = gemm_form(context.node);
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  if (a.rank() != 2 || b.rank() != 2) context.fail("inputs 0 and 1 must be matrices");
  const MatMulShape shape =
      matmul_shape(context.node, turned(a.dims(), form.transpose_a), turned(b.dims(), form.transpose_b));
  const Tensor bias = context.has_input(2) ? context.inputs[2] : Tensor();
  if (a.dtype() != b.dtype() || (bias.defined() && bias.dtype() != a.dtype())) {
    context.fail("the element types of the inputs differ");
  }
  if (bias.defined()) {
    const Dims operands[] = {shape.full_dims(), bias.dims()};
    if (broadcast_dims(context.node, operands) != shape.full_dims()) {
      context.fail("input 2 is " + to_string(bias.dims()) + ", it cannot broadcast to " + to_string(shape.full_dims()));
    }
  }
  make_output(context, a.dtype(), shape.output_dims());
  if (is_integer(a.dtype())) {
    const auto values = gemm(context, shape, form, wrapping_elements(a), wrapping_elements(b),
                             bias.defined() ? wrapping_elements(bias) : std::vector<uint64_t>(),
                             static_cast<uint64_t>(static_cast<int64_t>(form.alpha)),
                             static_cast<uint64_t>(static_cast<int64_t>(form.beta)));
    context.outputs[0] = wrapped_tensor(context, a.dtype(), shape.output_dims(), values);
  } else {
    const auto values =
        gemm(context, shape, form, reals_of(a), reals_of(b), bias.defined() ? reals_of(bias) : std::vector<double>(),
             static_cast<double>(form.alpha), static_cast<double>(form.beta));
    context.outputs[0] = tensor_of_reals(context, a.dtype(), shape.output_dims(), values);
  }
}

bool lower_floats(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  const DType dtype = context.output_type(0).dtype;
  if (dtype == DType::bf16 || dtype == DType::f16) return lower_half_product(context, shape, form);
  return lower_product(context, shape, form) || lower_plain_product(context, shape, form);
}

bool lower_matmul(LowerContext& context) {
  const MatMulShape shape =
      matmul_shape(context.node, context.input_type(0).extents(), context.input_type(1).extents());
  return lower_floats(context, shape, {});
}

bool lower_gemm(LowerContext& context) {
  const ProductForm form = gemm_form(context.node);
  const MatMulShape shape = matmul_shape(context.node, turned(context.input_type(0).extents(), form.transpose_a),
                                         turned(context.input_type(1).extents(), form.transpose_b));
  return lower_floats(context, shape, form);
}

OpSchema matmul_schema() {
  return {.name = "MatMul",
          .since = 1,
          .min_inputs = 2,
          .max_inputs = 2,
          .infer = infer_matmul_op,
          .reference = reference_matmul,
          .fuses_epilogue = true};
}

using Kind = AttributeSpec::Kind;

OpSchema gemm_schema(int since, int until) {
  OpSchema schema{
      .name = "Gemm",
      .since = since,
      .until = until,
      .min_inputs = since >= 11 ? 2 : 3,
      .max_inputs = 3,
      .attributes = {{"alpha", Kind::real}, {"beta", Kind::real}, {"transA", Kind::integer}, {"transB", Kind::integer}},
      .infer = infer_gemm,
      .reference = reference_gemm,
      .fuses_epilogue = true};
  // Before version 7 `broadcast` allowed what every later version does.
  if (until < 7) schema.attributes.push_back({"broadcast", Kind::integer});
  return schema;
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  return {{matmul_schema(), lower_matmul},
          {gemm_schema(1, 6), lower_gemm},
          {gemm_schema(7, 10), lower_gemm},
          {gemm_schema(11, 1 << 20), lower_gemm}};
}

}  // namespace lathe::ops
