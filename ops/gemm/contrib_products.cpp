#include "ops/gemm/contrib_products.h"

namespace lathe {

ValueId add_integer_product(ExpandContext& context, const IntegerProduct& product) {
  const DType dtype = context.type(product.a_scale).dtype;
  const ValueId sum = context.add("MatMulInteger", {product.a, product.b, product.a_zero_point, product.b_zero_point});
  const ValueId real = context.add("Cast", {sum}, {{"to", static_cast<int64_t>(dtype)}});
  const ValueId scale = context.add("Mul", {product.a_scale, product.b_scale});
  const ValueId y = context.add("Mul", {real, scale});
  return product.bias == ValueId::none ? y : context.add("Add", {y, product.bias});
}

}  // namespace lathe
