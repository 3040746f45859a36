// lathe::QuantizedMatMul: what DequantizeLinear of both operands and MatMul mean together, as a product of integers:
// scale * ((A - a_zero) * (B - b_zero)). The product takes A with its axes in the order perm_a, B in the order perm_b.
#include "ops/copy/copy_elements.h"
#include "ops/gemm/permuted_product.h"
#include "ops/int8/int8_node.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  const TensorType a = permuted_type(context, context.input(0), "perm_a");
  const TensorType b = permuted_type(context, context.input(1), "perm_b");
  context.set_output(0, infer_matmul(context, a, b, DType::f32));
}

// The elements of operand `i` less their zero points, with the axes in the order of the attribute. A zero point is one
// for all or one for each index of the last axis, or of the last but one (`by_rows`).
std::vector<double> centered(const ReferenceContext& context, int i, const AxisOrder& perm, bool by_rows) {
  const Tensor& tensor = context.inputs[static_cast<size_t>(i)];
  std::vector<double> values = permuted_elements(reals_of(tensor), tensor.dims(), perm);
  if (!context.has_input(i + 3)) return values;
  const std::vector<double> zeros = reals_of(context.inputs[static_cast<size_t>(i) + 3]);
  const Dims dims = permuted(tensor.dims(), perm);
  const size_t repeats = by_rows ? static_cast<size_t>(dims.back()) : 1;
  for (size_t at = 0; at < values.size(); ++at) values[at] -= zeros[at / repeats % zeros.size()];
  return values;
}

void reference(ReferenceContext& context) {
  const AxisOrder a_perm = context.node.attributes.get_ints("perm_a");
  const AxisOrder b_perm = context.node.attributes.get_ints("perm_b");
  const MatMulShape shape = matmul_shape(context.node, permuted(context.inputs[0].dims(), a_perm),
                                         permuted(context.inputs[1].dims(), b_perm));
  const std::vector<double> scale = reals_of(context.inputs[2]);
  Tensor result = make_output(context, DType::f32, shape.output_dims());
  const std::vector<double> sums =
      multiply(shape, centered(context, 0, a_perm, true), centered(context, 1, b_perm, false));
  for (size_t i = 0; i < sums.size(); ++i)
    store_real(result, static_cast<int64_t>(i), rounded_to(DType::i32, sums[i]) * scale[i % scale.size()]);
  context.outputs[0] = std::move(result);
}

bool lower(LowerContext& context) {
  const std::optional<QuantizedProduct> product = quantized_product(context);
  return product && lower_int8_product(context, product->shape, product->form);
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
