// Products of quantized matrices: MatMulInteger (int32 result) and QLinearMatMul (requantized result).
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/int8/int8_lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void require_inputs(const InferContext& context, std::initializer_list<int> inputs) {
  for (const int i : inputs) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
  }
}

void require_bytes(const InferContext& context, int i) {
  const DType dtype = context.input(i).dtype;
  if (dtype != DType::i8 && dtype != DType::u8) {
    context.fail("input " + std::to_string(i) + " is " + std::string(name_of(dtype)) + ", expected int8 or uint8");
  }
}

void infer_matmul_integer(InferContext& context) {
  require_inputs(context, {0, 1});
  require_bytes(context, 0);
  require_bytes(context, 1);
  context.set_output(0, infer_matmul(context, context.input(0), context.input(1), DType::i32));
}

// Inputs: a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point.
void infer_qlinear_matmul(InferContext& context) {
  require_inputs(context, {0, 1, 2, 3, 4, 5, 6, 7});
  require_bytes(context, 0);
  require_bytes(context, 3);
  require_bytes(context, 7);
  context.set_output(0, infer_matmul(context, context.input(0), context.input(3), context.input(7).dtype));
}

// A scale or zero point: one for all, one for each row of A or column of B, or one for each of these in each matrix.
class PerVector {
 public:
  PerVector(const ReferenceContext& context, const Tensor& tensor, int64_t vectors, const Dims& batch, const char* what)
      : vectors_(vectors) {
    if (!tensor.defined()) {
      values_ = {0};
      return;
    }
    values_ = reals_of(tensor);
    const int64_t matrices = product_of_all(batch);
    if (tensor.size() == 1) return;
    step_ = 1;
    if (tensor.size() == vectors) return;
    if (tensor.size() != vectors * matrices) {
      context.fail(std::string(what) + " has " + std::to_string(tensor.size()) + " elements, expected 1 or " +
                   std::to_string(vectors));
    }
    matrix_step_ = vectors_;
  }
  double at(int64_t matrix, int64_t vector) const {
    return values_[static_cast<size_t>(matrix * matrix_step_ + vector * step_)];
  }

 private:
  static int64_t product_of_all(const Dims& dims) {
    int64_t product = 1;
    for (const int64_t extent : dims) product *= extent;
    return product;
  }

  std::vector<double> values_;
  int64_t vectors_, step_ = 0, matrix_step_ = 0;
};

Dims leading(const Dims& dims) { return dims.size() > 2 ? Dims(dims.begin(), dims.end() - 2) : Dims(); }

// visit(matrix of A, matrix of B, element of the output, row, column, sum of products less the zero points), where the
// sum is one of 32 bits: it wraps around.
template <class Visit>
void multiply(const MatMulShape& shape, const Tensor& a_tensor, const Tensor& b_tensor, const PerVector& a_zero,
              const PerVector& b_zero, Visit visit) {
  const std::vector<int64_t> a = integers_of_any(a_tensor), b = integers_of_any(b_tensor);
  std::vector<int64_t> sums(static_cast<size_t>(shape.n));  // products of bytes leave room for 2^46 of them
  for_each_matrix(shape, [&](int64_t a_matrix, int64_t b_matrix, int64_t matrix) {
    for (int64_t i = 0; i < shape.m; ++i) {
      std::fill(sums.begin(), sums.end(), 0);
      const auto a_shift = static_cast<int64_t>(a_zero.at(a_matrix, i));
      for (int64_t p = 0; p < shape.k; ++p) {
        const int64_t factor = a[static_cast<size_t>((a_matrix * shape.m + i) * shape.k + p)] - a_shift;
        const int64_t* row = b.data() + (b_matrix * shape.k + p) * shape.n;
        for (int64_t j = 0; j < shape.n; ++j) {
          sums[static_cast<size_t>(j)] += factor * (row[j] - static_cast<int64_t>(b_zero.at(b_matrix, j)));
        }
      }
      for (int64_t j = 0; j < shape.n; ++j) {
        visit(a_matrix, b_matrix, (matrix * shape.m + i) * shape.n + j, i, j,
              static_cast<int32_t>(sums[static_cast<size_t>(j)]));
      }
    }
  });
}

void reference_matmul_integer(ReferenceContext& context) {
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  const MatMulShape shape = matmul_shape(context.node, a.dims(), b.dims());
  Tensor result = make_output(context, DType::i32, shape.output_dims());
  const Tensor none;
  const PerVector a_zero(context, context.has_input(2) ? context.inputs[2] : none, shape.m, leading(a.dims()),
                         "input 2 (a_zero_point)");
  const PerVector b_zero(context, context.has_input(3) ? context.inputs[3] : none, shape.n, leading(b.dims()),
                         "input 3 (b_zero_point)");
  auto* out = result.mutable_data<int32_t>();
  multiply(shape, a, b, a_zero, b_zero,
           [&](int64_t, int64_t, int64_t element, int64_t, int64_t, int32_t sum) { out[element] = sum; });
  context.outputs[0] = std::move(result);
}

void reference_qlinear_matmul(ReferenceContext& context) {
  const Tensor &a = context.inputs[0], &b = context.inputs[3];
  const MatMulShape shape = matmul_shape(context.node, a.dims(), b.dims());
  const DType dtype = context.inputs[7].dtype();
  if (dtype != DType::u8 && dtype != DType::i8) context.fail("input 7 (y_zero_point) must be int8 or uint8");
  Tensor result = make_output(context, dtype, shape.output_dims());
  const Dims a_batch = leading(a.dims()), b_batch = leading(b.dims());
  const PerVector a_scale(context, context.inputs[1], shape.m, a_batch, "input 1 (a_scale)");
  const PerVector a_zero(context, context.inputs[2], shape.m, a_batch, "input 2 (a_zero_point)");
  const PerVector b_scale(context, context.inputs[4], shape.n, b_batch, "input 4 (b_scale)");
  const PerVector b_zero(context, context.inputs[5], shape.n, b_batch, "input 5 (b_zero_point)");
  const PerVector y_scale(context, context.inputs[6], shape.m, shape.batch, "input 6 (y_scale)");
  const PerVector y_zero(context, context.inputs[7], shape.m, shape.batch, "input 7 (y_zero_point)");
  const double lowest = dtype == DType::u8 ? 0 : -128, highest = dtype == DType::u8 ? 255 : 127;
  multiply(shape, a, b, a_zero, b_zero,
           [&](int64_t a_matrix, int64_t b_matrix, int64_t element, int64_t i, int64_t j, int32_t sum) {
             const int64_t matrix = element / (shape.m * shape.n);
             const double scale = a_scale.at(a_matrix, i) * b_scale.at(b_matrix, j) / y_scale.at(matrix, i);
             const double value = std::nearbyint(sum * scale) + y_zero.at(matrix, i);
             store_real(result, element, std::isnan(value) ? 0 : std::clamp(value, lowest, highest));
           });
  context.outputs[0] = std::move(result);
}

bool lower_matmul_integer(LowerContext& context) {
  const MatMulShape shape =
      matmul_shape(context.node, context.input_type(0).extents(), context.input_type(1).extents());
  Int8Form form;
  form.a_zero = 2;
  form.b_zero = 3;
  return lower_int8_product(context, shape, form);
}

// Scales and the result's zero point must be constant, those of A and of the result one for all.
bool lower_qlinear_matmul(LowerContext& context) {
  const Tensor a_scale = context.constant(1), b_scale = context.constant(4), y_scale = context.constant(6);
  const Tensor y_zero = context.constant(7);
  for (const Tensor* scale : {&a_scale, &b_scale, &y_scale}) {
    if (!scale->defined() || scale->dtype() != DType::f32 || scale->size() < 1) return false;
  }
  if (!y_zero.defined() || a_scale.size() != 1 || y_scale.size() != 1 || y_zero.size() != 1 || b_scale.rank() > 1) {
    return false;
  }
  const MatMulShape shape =
      matmul_shape(context.node, context.input_type(0).extents(), context.input_type(3).extents());
  Int8Form form{.a = 0, .b = 3, .a_zero = 2, .b_zero = 5};
  form.scale = Tensor(DType::f32, {b_scale.size()});
  for (int64_t i = 0; i < b_scale.size(); ++i) {
    const double scale = double{*a_scale.data<float>()} * double{b_scale.data<float>()[i]} / *y_scale.data<float>();
    form.scale.mutable_data<float>()[i] = static_cast<float>(scale);
  }
  Expression tail;
  tail.inputs = {DType::f32};
  tail.output = y_zero.dtype();
  const int rounded = tail.add({.op = ExprOp::round_even, .a = tail.add({.op = ExprOp::input, .a = 0})});
  const auto zero = static_cast<float>(integers_of_any(y_zero)[0]);
  const int shift = tail.add({.op = ExprOp::constant, .value = zero});
  tail.add({.op = ExprOp::add, .a = rounded, .b = shift});
  form.tail = tail;
  return lower_int8_product(context, shape, form);
}

}  // namespace

std::vector<OpDef> matmul_integer_ops() {
  return {{{.name = "MatMulInteger",
            .since = 10,
            .min_inputs = 2,
            .max_inputs = 4,
            .infer = infer_matmul_integer,
            .reference = reference_matmul_integer},
           lower_matmul_integer},
          {{.name = "QLinearMatMul",
            .since = 10,
            .min_inputs = 8,
            .max_inputs = 8,
            .infer = infer_qlinear_matmul,
            .reference = reference_qlinear_matmul},
           lower_qlinear_matmul}};
}

}  // namespace lathe::ops
