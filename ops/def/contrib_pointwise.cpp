// com.microsoft's sums that carry something along: BiasAdd, BiasSplitGelu, BiasDropout, BiasSoftmax.
#include "ops/expansion.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// Inputs: x, bias, skip.
bool expand_bias_add(ExpandContext& context) {
  const ValueId sum = context.add("Add", {context.input(0), context.input(1)});
  context.set_output(0, context.add("Add", {sum, context.input(2)}));
  return true;
}

// The left half of x + bias, times gelu of the right half.
bool expand_split_gelu(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank || type.rank() == 0 || !type.dims.back().known()) return false;
  const int64_t columns = type.dims.back().extent;
  if (columns % 2 != 0) context.fail("the last axis has " + std::to_string(columns) + " elements, an odd number");
  const ValueId sum = context.add("Add", {context.input(0), context.input(1)});
  const std::vector<ValueId> halves = add_split(context, sum, -1, {columns / 2, columns / 2});
  context.set_output(0, context.add("Mul", {halves[0], context.add("Gelu", {halves[1]})}));
  return true;
}

// Inputs: x, bias, residual, ratio, training_mode. Nothing is dropped in inference.
bool expand_bias_dropout(ExpandContext& context) {
  if (context.has_input(4)) {
    const Tensor training = context.constant_of(context.input(4));
    const bool is_off = training.defined() && training.size() == 1 && !*training.data<bool>();
    if (!is_off) context.unsupported("training");
  }
  ValueId sum = context.add("Add", {context.input(0), context.input(1)});
  if (context.has_input(2)) sum = context.add("Add", {sum, context.input(2)});
  if (context.has_output(1)) {
    Tensor kept(DType::boolean, {1});
    *kept.mutable_data<bool>() = true;
    context.set_output(1,
                       context.add("ConstantOfShape", {context.add("Shape", {context.input(0)})}, {{"value", kept}}));
  }
  context.set_output(0, sum);
  return true;
}

// Softmax over all axes from `axis` on.
bool expand_bias_softmax(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank) return false;
  const int64_t axis = context.node.attributes.get_int("axis", 1);
  const ValueId sum = context.add("Add", {context.input(0), context.input(1)});
  if (axis_within(context, axis, type.rank()) == type.rank() - 1) {
    context.set_output(0, context.add("Softmax", {sum}, {{"axis", int64_t{-1}}}));
    return true;
  }
  const ValueId rows = context.add("Flatten", {sum}, {{"axis", axis}});
  const ValueId softmax = context.add("Softmax", {rows}, {{"axis", int64_t{-1}}});
  context.set_output(0, context.add("Reshape", {softmax, context.add("Shape", {sum})}));
  return true;
}

}  // namespace

std::vector<OpDef> contrib_pointwise_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef dropout = composite("BiasDropout", 2, 5, expand_bias_dropout, {{"seed", Kind::integer}});
  dropout.schema.max_outputs = 2;
  return {composite("BiasAdd", 3, 3, expand_bias_add), composite("BiasSplitGelu", 2, 2, expand_split_gelu),
          std::move(dropout),
          composite("BiasSoftmax", 2, 2, expand_bias_softmax,
                    {{"axis", Kind::integer}, {"is_inner_broadcast", Kind::integer}})};
}

}  // namespace lathe::ops
