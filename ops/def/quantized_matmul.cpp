// lathe::QuantizedMatMul: what DequantizeLinear of both operands and MatMul mean together, as a product of integers:
// scale * ((A - a_zero) * (B - b_zero)). The product takes A with its axes in the order perm_a, B in the order perm_b.
#include "ops/copy/copy_elements.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/int8/int8_lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

using Perm = std::vector<int64_t>;

template <class Axes>
Axes permuted(const Axes& axes, const Perm& perm) {
  if (perm.empty()) return axes;
  Axes result;
  for (const int64_t axis : perm) result.push_back(axes[static_cast<size_t>(axis)]);
  return result;
}

TensorType permuted_type(const InferContext& context, int i, const char* attribute) {
  TensorType type = context.input(i);
  const Perm perm = context.node.attributes.get_ints(attribute);
  if (perm.empty() || !type.has_rank) return type;
  if (perm.size() != type.dims.size()) context.fail(std::string("attribute '") + attribute + "' is no order");
  type.dims = permuted(type.dims, perm);
  return type;
}

void infer(InferContext& context) {
  context.set_output(
      0, infer_matmul(context, permuted_type(context, 0, "perm_a"), permuted_type(context, 1, "perm_b"), DType::f32));
}

// The elements less their zero points, with the axes in the order `perm`. A zero point is one for all or one for each
// index of the last axis (columns) or the last but one (rows).
std::vector<double> centered(const Tensor& tensor, const Tensor& zero, const Perm& perm, bool by_rows) {
  const std::vector<double> values = reals_of(tensor);
  const std::vector<double> zeros = zero.defined() ? reals_of(zero) : std::vector<double>{0};
  const std::vector<int64_t> strides = strides_of(tensor.dims());
  const Dims dims = permuted(tensor.dims(), perm);
  std::vector<double> result;
  result.reserve(values.size());
  for (IndexWalk at(dims); !at.done(); at.next()) {
    int64_t from = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      from += at.index()[i] * strides[perm.empty() ? i : static_cast<size_t>(perm[i])];
    }
    size_t vector = 0;
    if (zeros.size() > 1) vector = static_cast<size_t>(at.index()[dims.size() - (by_rows ? 2 : 1)]);
    result.push_back(values[static_cast<size_t>(from)] - zeros[vector]);
  }
  return result;
}

void reference(ReferenceContext& context) {
  const Perm a_perm = context.node.attributes.get_ints("perm_a"), b_perm = context.node.attributes.get_ints("perm_b");
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  const MatMulShape shape = matmul_shape(context.node, permuted(a.dims(), a_perm), permuted(b.dims(), b_perm));
  const Tensor none;
  const std::vector<double> left = centered(a, context.has_input(3) ? context.inputs[3] : none, a_perm, true);
  const std::vector<double> right = centered(b, context.has_input(4) ? context.inputs[4] : none, b_perm, false);
  const std::vector<double> scale = reals_of(context.inputs[2]);
  Tensor result = make_output(context, DType::f32, shape.output_dims());
  for_each_matrix(shape, [&](int64_t a_matrix, int64_t b_matrix, int64_t matrix) {
    for (int64_t i = 0; i < shape.m; ++i) {
      std::vector<double> sums(static_cast<size_t>(shape.n), 0);
      for (int64_t p = 0; p < shape.k; ++p) {
        const double factor = left[static_cast<size_t>((a_matrix * shape.m + i) * shape.k + p)];
        const double* row = right.data() + (b_matrix * shape.k + p) * shape.n;
        for (int64_t j = 0; j < shape.n; ++j) sums[static_cast<size_t>(j)] += factor * row[j];
      }
      for (int64_t j = 0; j < shape.n; ++j) {
        const auto column = static_cast<size_t>(j);
        store_real(result, (matrix * shape.m + i) * shape.n + j, sums[column] * scale[scale.size() == 1 ? 0 : column]);
      }
    }
  });
  context.outputs[0] = std::move(result);
}

bool lower(LowerContext& context) {
  Int8Form form;
  form.a_zero = 3;
  form.b_zero = 4;
  form.a_perm = context.node.attributes.get_ints("perm_a");
  form.b_perm = context.node.attributes.get_ints("perm_b");
  form.scale = context.constant(2);
  if (!form.scale.defined()) return false;
  const MatMulShape shape = matmul_shape(context.node, permuted(context.input_type(0).extents(), form.a_perm),
                                         permuted(context.input_type(1).extents(), form.b_perm));
  return lower_int8_product(context, shape, form);
}

}  // namespace

std::vector<OpDef> quantized_matmul_ops() {
  using Kind = AttributeSpec::Kind;
  // Inputs: A, B, scale, a_zero, b_zero.
  return {{{.name = "QuantizedMatMul",
            .domain = "lathe",
            .min_inputs = 3,
            .max_inputs = 5,
            .attributes = {{"perm_a", Kind::integers}, {"perm_b", Kind::integers}},
            .infer = infer,
            .reference = reference,
            .fuses_epilogue = true},
           lower}};
}

}  // namespace lathe::ops
