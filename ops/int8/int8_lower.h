#pragma once
// From a node that is a product of quantized matrices to the steps that run it on integers.
#include <optional>
#include <span>
#include <vector>

#include "jit/kernels/common/int8_store.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/lower.h"

namespace lathe {

// sum = (A - a_zero) * (B - b_zero) over bytes; output 0 is the sum, or tail(scale * sum), with the node's epilogue
// behind it.
struct Int8Form {
  int a = 0, b = 1, a_zero = -1, b_zero = -1;     // inputs of the node; -1: none
  std::vector<int64_t> a_perm = {}, b_perm = {};  // in what order the product takes their axes; empty: as they are
  Tensor scale = {};                              // float32: one for all or one for each column; undefined: int32 sums
  std::optional<Expression> tail = {};            // of scale * sum
};

// False: types or zero points that the kernels lack. `shape` is that of the operands with their axes in order.
bool lower_int8_product(LowerContext& context, const MatMulShape& shape, const Int8Form& form);

// outer(scale * x0, other inputs...) with a constant factor at outer's beginning moved into `scale`, and divisions by
// constants made multiplications. One scale: it becomes a constant, else input 1; outer's inputs follow.
Expression scaled_expression(const std::optional<Expression>& outer, std::vector<float>& scale);

// Takes rounding, zero point and saturation off the end of a scaled expression whose result is bytes, and joins what is
// left into multiply-adds, with constants of its own: a result may differ by roundings. erf before bytes is off by less
// than 7e-6. `factors`: the scale. The expression's result is float32 then; other results keep their type.
// `takes_gelu`: the kernel has Int8Store::gelu.
Int8Store split_requantization(Expression& expression, std::span<const float> factors, bool takes_gelu = false);
// The same for kernels that have Int8Store::table: what depends on one byte alone is looked up.
Int8Store split_requantization_by_table(Expression& expression, std::span<const float> factors);

// What becomes of an input: factor * x + offset.
struct InputChange {
  double factor = 1, offset = 0;
  bool is_none() const { return factor == 1 && offset == 0; }
};
// The same for kernels that have all that Int8Store has, as far as this instruction set goes, where inputs of some
// slots may be changed ahead: they take in constants beside them. `changes`: by slot. Requires: as many `may_change`.
Int8Store split_requantization(Expression& expression, Isa isa, const std::vector<bool>& may_change,
                               std::vector<InputChange>& changes);

// A pointwise expression that rounds a quotient of sums of multiples of bytes, and of others, on its way to bytes: one
// multiple of each, its factor rounded once.
void join_requantization(Expression& expression);

// Behind a kernel that stores bytes: factor * x0, stored so. nullopt: the expression is another one.
struct Requantization {
  float factor = 1;
  Int8Store store;
};
std::optional<Requantization> as_requantization(const Expression& expression);

}  // namespace lathe
