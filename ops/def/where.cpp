// Where: condition ? a : b, broadcast; any element type.
#include <algorithm>

#include "ops/numbers.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  for (int i = 0; i < 3; ++i)
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
  if (context.input(0).dtype != DType::boolean) context.fail("the condition is not bool");
  if (context.input(1).dtype != context.input(2).dtype) context.fail("the two choices have different types");
  const TensorType types[] = {context.input(0), context.input(1), context.input(2)};
  context.set_output(0, broadcast_types(context, types[1].dtype, types));
}

void reference(ReferenceContext& context) {
  const std::vector<Dims> dims = operand_dims(context);
  const bool* condition = context.inputs[0].data<bool>();
  const Tensor yes = spread_elements(context.inputs[1]), no = spread_elements(context.inputs[2]);
  if (context.inputs[1].dtype() != context.inputs[2].dtype()) context.fail("the two choices have different types");
  Tensor result = make_output(context, yes.dtype(), broadcast_dims(context.node, dims));
  const ElementCopy copy(yes.dtype());
  for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next())
    for (int64_t i = 0; i < rows.length(); ++i) {
      const size_t k = condition[rows.begin(0) + i * rows.stride(0)] ? 1 : 2;
      copy(k == 1 ? yes : no, rows.begin(k) + i * rows.stride(k), result, rows.begin() + i);
    }
  context.outputs[0] = pack_elements(result, context.inputs[1].dtype());
}

std::optional<Expression> express(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  const DType dtype = inputs[1].dtype;
  const bool fits = dtype == DType::f32 || dtype == DType::boolean || is_byte(dtype);
  if (!fits || inputs[0].dtype != DType::boolean || inputs[2].dtype != dtype) return std::nullopt;
  ExpressionWriter w(inputs);
  const int condition = w.x(0), yes = w.x(1);
  w.select(condition, yes, w.x(2));
  return w.finish(dtype);
}

// Of a condition for each element, and operands that move or stay.
template <class T, bool YesMoves, bool NoMoves>
[[gnu::target("avx2")]] void choose_elements(const RowOperands& row) {
  const auto* condition = static_cast<const uint8_t*>(row.in[0]);
  const auto *yes = static_cast<const T*>(row.in[1]), *no = static_cast<const T*>(row.in[2]);
  auto* out = static_cast<T*>(row.out);
  const int64_t length = row.length;
  const T one_yes = *yes, one_no = *no;
  for (int64_t i = 0; i < length; ++i) {
    const T a = YesMoves ? yes[i] : one_yes, b = NoMoves ? no[i] : one_no;
    out[i] = condition[i] != 0 ? a : b;
  }
}

// Elements as bits of their width.
template <class T>
[[gnu::target("avx2")]] void choose_row(const RowOperands& row) {
  const int64_t step = row.stride[0], of_yes = row.stride[1], of_no = row.stride[2];
  if (step == 1 && of_yes == 1 && of_no == 1) return choose_elements<T, true, true>(row);
  if (step == 1 && of_yes == 1 && of_no == 0) return choose_elements<T, true, false>(row);
  if (step == 1 && of_yes == 0 && of_no == 1) return choose_elements<T, false, true>(row);
  if (step == 1 && of_yes == 0 && of_no == 0) return choose_elements<T, false, false>(row);
  const auto* condition = static_cast<const uint8_t*>(row.in[0]);
  const auto *yes = static_cast<const T*>(row.in[1]), *no = static_cast<const T*>(row.in[2]);
  auto* out = static_cast<T*>(row.out);
  if (step == 0) {  // the whole row is of one of the two
    const T* from = *condition != 0 ? yes : no;
    const int64_t stride = *condition != 0 ? of_yes : of_no;
    if (stride == 1) std::copy_n(from, row.length, out);
    if (stride == 0) std::fill_n(out, row.length, *from);
    if (stride == 0 || stride == 1) return;
  }
  for (int64_t i = 0; i < row.length; ++i) {
    const T a = yes[i * of_yes], b = no[i * of_no];
    out[i] = condition[i * step] != 0 ? a : b;
  }
}

bool lower(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  const DType dtype = context.output_type(0).dtype;
  if (dtype == DType::string || dtype == DType::object) return false;
  switch (bits_of(dtype)) {
    case 8:
      return add_row_step(context, choose_row<uint8_t>, "choose rows");
    case 16:
      return add_row_step(context, choose_row<uint16_t>, "choose rows");
    case 32:
      return add_row_step(context, choose_row<uint32_t>, "choose rows");
    case 64:
      return add_row_step(context, choose_row<uint64_t>, "choose rows");
    default:
      return false;
  }
}

}  // namespace

std::vector<OpDef> where_ops() {
  return {{.schema = {.name = "Where",
                      .since = 9,
                      .min_inputs = 3,
                      .max_inputs = 3,
                      .infer = infer,
                      .reference = reference,
                      .express = express,
                      .layout = LayoutRole::any_same},
           .lower = lower}};
}

}  // namespace lathe::ops
