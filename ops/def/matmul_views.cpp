// lathe::MatMulViews: MatMul with the Transposes around it absorbed. The product takes input 0 with its axes in the
// order perm_a, input 1 in the order perm_b, and stores its own axes in the order perm_y.
#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_lower.h"
#include "ops/gemm/permuted_product.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer_matmul_views(InferContext& context) {
  const TensorType a = permuted_type(context, context.input(0), "perm_a");
  const TensorType b = permuted_type(context, context.input(1), "perm_b");
  context.set_output(0, permuted_type(context, infer_matmul(context, a, b, a.dtype), "perm_y"));
}

void reference_matmul_views(ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const AxisOrder a_perm = attributes.get_ints("perm_a"), b_perm = attributes.get_ints("perm_b");
  const AxisOrder y_perm = attributes.get_ints("perm_y");
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  const MatMulShape shape = matmul_shape(context.node, permuted(a.dims(), a_perm), permuted(b.dims(), b_perm));
  const Dims dims = permuted(shape.output_dims(), y_perm);
  make_output(context, a.dtype(), dims);  // checks the size first
  const std::vector<double> sums = multiply(shape, permuted_elements(reals_of(a), a.dims(), a_perm),
                                            permuted_elements(reals_of(b), b.dims(), b_perm));
  context.outputs[0] = tensor_of_reals(context, a.dtype(), dims, permuted_elements(sums, shape.output_dims(), y_perm));
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
