// com.microsoft's products of quantized matrices with float32 results: MatMulIntegerToFloat, DynamicQuantizeMatMul,
// QGemm.
#include "ops/gemm/contrib_products.h"

namespace lathe::ops {
namespace {

// Inputs: a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias.
bool expand_to_float(ExpandContext& context) {
  context.set_output(0, add_integer_product(context, {.a = context.input(0),
                                                      .a_scale = context.input(2),
                                                      .a_zero_point = context.input(4),
                                                      .b = context.input(1),
                                                      .b_scale = context.input(3),
                                                      .b_zero_point = context.input(5),
                                                      .bias = context.input(6)}));
  return true;
}

void infer_to_float(InferContext& context) {
  infer_by_expansion(context);
  TensorType type = context.outputs()[0];
  type.dtype = context.has_input(2) ? context.input(2).dtype : DType::f32;
  context.set_output(0, std::move(type));
}

// Inputs: a (float32), b, b_scale, b_zero_point, bias.
bool expand_dynamic(ExpandContext& context) {
  require_inputs(context, {0, 1, 2});
  const std::vector<ValueId> a = context.add_many("DynamicQuantizeLinear", {context.input(0)}, 3, Attributes());
  context.set_output(0, add_integer_product(context, {.a = a[0],
                                                      .a_scale = a[1],
                                                      .a_zero_point = a[2],
                                                      .b = context.input(1),
                                                      .b_scale = context.input(2),
                                                      .b_zero_point = context.input(3),
                                                      .bias = context.input(4)}));
  return true;
}

// Inputs: a, a_scale, a_zero_point, b, b_scale, b_zero_point, c (int32, in units of the product), y_scale,
// y_zero_point.
bool expand_gemm(ExpandContext& context) {
  require_inputs(context, {1, 2, 3, 4, 5});
  const Attributes& attributes = context.node.attributes;
  const auto turned = [&](int i, const char* attribute) {
    return attributes.get_int(attribute, 0) != 0 ? add_transposed(context, context.input(i), {1, 0}) : context.input(i);
  };
  const ValueId a = turned(0, "transA"), b = turned(3, "transB");
  ValueId sum = context.add("MatMulInteger", {a, b, context.input(2), context.input(5)});
  if (context.has_input(6)) sum = context.add("Add", {sum, context.input(6)});
  const ValueId real = context.add("Cast", {sum}, {{"to", static_cast<int64_t>(DType::f32)}});
  ValueId scale = context.add("Mul", {context.input(1), context.input(4)});
  if (const float alpha = attributes.get_float("alpha", 1); alpha != 1) {
    scale = context.add("Mul", {scale, add_scalar(context, DType::f32, static_cast<double>(alpha))});
  }
  ValueId y = context.add("Mul", {real, scale});
  if (context.has_input(7)) {
    const DType dtype = context.has_input(8) ? context.input_type(8).dtype : context.input_type(0).dtype;
    y = add_quantized(context, y, context.input(7), context.input(8), dtype);
  }
  context.set_output(0, y);
  return true;
}

}  // namespace

std::vector<OpDef> contrib_integer_matmul_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef to_float = composite("MatMulIntegerToFloat", 4, 7, expand_to_float);
  to_float.schema.infer = infer_to_float;
  return {std::move(to_float), composite("DynamicQuantizeMatMul", 3, 5, expand_dynamic),
          composite("QGemm", 6, 9, expand_gemm,
                    {{"alpha", Kind::real}, {"transA", Kind::integer}, {"transB", Kind::integer}})};
}

}  // namespace lathe::ops
