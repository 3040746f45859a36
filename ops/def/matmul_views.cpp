// lathe::MatMulViews: MatMul with the Transposes around it absorbed. The product takes input 0 with its axes in the
// order perm_a, input 1 in the order perm_b, and stores its own axes in the order perm_y.
#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_lower.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

using Perm = std::vector<int64_t>;

bool is_permutation(const Perm& perm, size_t rank) {
  std::vector<bool> seen(rank, false);
  if (perm.size() != rank) return false;
  for (const int64_t axis : perm) {
    if (axis < 0 || axis >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(axis)]) return false;
    seen[static_cast<size_t>(axis)] = true;
  }
  return true;
}

template <class Axes>
Axes permuted(const Axes& axes, const Perm& perm) {
  if (perm.empty()) return axes;
  Axes result;
  for (const int64_t axis : perm) result.push_back(axes[static_cast<size_t>(axis)]);
  return result;
}

TensorType permuted_type(const InferContext& context, TensorType type, const char* attribute) {
  const Perm perm = context.node.attributes.get_ints(attribute);
  if (perm.empty()) return type;
  if (!type.has_rank) return type;
  if (!is_permutation(perm, type.dims.size())) context.fail(std::string("attribute '") + attribute + "' is no order");
  type.dims = permuted(type.dims, perm);
  return type;
}

void infer_matmul_views(InferContext& context) {
  const TensorType a = permuted_type(context, context.input(0), "perm_a");
  const TensorType b = permuted_type(context, context.input(1), "perm_b");
  context.set_output(0, permuted_type(context, infer_matmul(context, a, b, a.dtype), "perm_y"));
}

// The elements with the axes in the order `perm`.
std::vector<double> turned(const std::vector<double>& values, const Dims& dims, const Perm& perm) {
  if (perm.empty()) return values;
  const std::vector<int64_t> strides = strides_of(dims);
  std::vector<double> result;
  result.reserve(values.size());
  for (IndexWalk at(permuted(dims, perm)); !at.done(); at.next()) {
    int64_t from = 0;
    for (size_t i = 0; i < perm.size(); ++i) from += at.index()[i] * strides[static_cast<size_t>(perm[i])];
    result.push_back(values[static_cast<size_t>(from)]);
  }
  return result;
}

void reference_matmul_views(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const Perm a_perm = attributes.get_ints("perm_a"), b_perm = attributes.get_ints("perm_b");
  const Perm y_perm = attributes.get_ints("perm_y");
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  const MatMulShape shape = matmul_shape(context.node, permuted(a.dims(), a_perm), permuted(b.dims(), b_perm));
  const Dims dims = permuted(shape.output_dims(), y_perm);
  make_output(context, a.dtype(), dims);  // checks the size first
  const std::vector<double> left = turned(reals_of(a), a.dims(), a_perm), right = turned(reals_of(b), b.dims(), b_perm);
  std::vector<double> sums(static_cast<size_t>(shape.batches() * shape.m * shape.n), 0);
  for_each_matrix(shape, [&](int64_t a_matrix, int64_t b_matrix, int64_t matrix) {
    for (int64_t i = 0; i < shape.m; ++i) {
      double* row = sums.data() + (matrix * shape.m + i) * shape.n;
      for (int64_t p = 0; p < shape.k; ++p) {
        const double factor = left[static_cast<size_t>((a_matrix * shape.m + i) * shape.k + p)];
        const double* from = right.data() + (b_matrix * shape.k + p) * shape.n;
        for (int64_t j = 0; j < shape.n; ++j) row[j] += factor * from[j];
      }
    }
  });
  context.outputs[0] = tensor_of_reals(context, a.dtype(), dims, turned(sums, shape.output_dims(), y_perm));
}

bool lower_matmul_views(LowerContext& context) {
  ProductForm form;
  form.a_perm = context.node.attributes.get_ints("perm_a");
  form.b_perm = context.node.attributes.get_ints("perm_b");
  form.y_perm = context.node.attributes.get_ints("perm_y");
  const MatMulShape shape = matmul_shape(context.node, permuted(context.input_type(0).extents(), form.a_perm),
                                         permuted(context.input_type(1).extents(), form.b_perm));
  return lower_product(context, shape, form);
}

}  // namespace

std::vector<OpDef> matmul_views_ops() {
  using Kind = AttributeSpec::Kind;
  return {{{.name = "MatMulViews",
            .domain = "lathe",
            .min_inputs = 2,
            .max_inputs = 2,
            .attributes = {{"perm_a", Kind::integers}, {"perm_b", Kind::integers}, {"perm_y", Kind::integers}},
            .infer = infer_matmul_views,
            .reference = reference_matmul_views,
            .fuses_epilogue = true},
           lower_matmul_views}};
}

}  // namespace lathe::ops
