// com.microsoft's EmbedLayerNormalization and its quantized form: the sum of three embeddings, normalized.
#include "ops/expansion.h"

namespace lathe::ops {
namespace {

// The first rows of the table of positions, as many as there are tokens.
ValueId leading_positions(ExpandContext& context, ValueId table) {
  const ValueId length = context.add("Shape", {context.input(0)}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  return context.add("Slice", {table, context.longs({0}), length, context.longs({0})});
}

// How many tokens the mask keeps, [batch]; zeros without a mask.
ValueId mask_index(ExpandContext& context, int mask) {
  const DType dtype = context.input_type(0).dtype;
  if (context.has_input(mask)) {
    return context.add("ReduceSum", {context.input(mask), context.longs({1})}, {{"keepdims", int64_t{0}}});
  }
  const ValueId batch = context.add("Shape", {context.input(0)}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  return context.add("ConstantOfShape", {batch}, {{"value", Tensor(dtype, {1})}});
}

ValueId looked_up(ExpandContext& context, int table, ValueId ids) {
  return context.add("Gather", {context.input(table), ids}, {{"axis", int64_t{0}}});
}

ValueId normalized(ExpandContext& context, ValueId sum, ValueId gamma, ValueId beta) {
  return context.add("LayerNormalization", {sum, gamma, beta},
                     {{"axis", int64_t{-1}}, {"epsilon", context.node.attributes.get_float("epsilon", 1e-12F)}});
}

// Inputs: input_ids, segment_ids, word, position, segment, gamma, beta, mask, position_ids.
bool expand_embedding(ExpandContext& context) {
  require_inputs(context, {2, 3, 5, 6});
  ValueId sum = looked_up(context, 2, context.input(0));
  const ValueId positions =
      context.has_input(8) ? looked_up(context, 3, context.input(8)) : leading_positions(context, context.input(3));
  sum = context.add("Add", {sum, positions});
  if (context.has_input(1)) {
    require_inputs(context, {4});
    sum = context.add("Add", {sum, looked_up(context, 4, context.input(1))});
  }
  context.set_output(0, normalized(context, sum, context.input(5), context.input(6)));
  if (context.has_output(1)) context.set_output(1, mask_index(context, 7));
  context.set_output(2, sum);
  return true;
}

// The tables, gamma and beta are bytes. Inputs: as above up to the mask, then five scales, then five zero points.
bool expand_quantized_embedding(ExpandContext& context) {
  require_inputs(context, {2, 3, 5, 6, 8, 9, 11, 12});
  const auto real = [&](ValueId x, int scale) {
    return add_dequantized(context, x, context.input(scale), context.input(scale + 5));
  };
  const ValueId words = real(looked_up(context, 2, context.input(0)), 8);
  ValueId sum = context.add("Add", {words, real(leading_positions(context, context.input(3)), 9)});
  if (context.has_input(1)) {
    require_inputs(context, {4, 10});
    sum = context.add("Add", {sum, real(looked_up(context, 4, context.input(1)), 10)});
  }
  context.set_output(0, normalized(context, sum, real(context.input(5), 11), real(context.input(6), 12)));
  if (context.has_output(1)) context.set_output(1, mask_index(context, 7));
  return true;
}

}  // namespace

std::vector<OpDef> contrib_embedding_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> attributes = {{"epsilon", Kind::real}, {"mask_index_type", Kind::integer}};
  OpDef plain = composite("EmbedLayerNormalization", 1, 9, expand_embedding, attributes);
  plain.schema.max_outputs = 3;
  OpDef quantized = composite("QEmbedLayerNormalization", 1, 18, expand_quantized_embedding, attributes);
  quantized.schema.max_outputs = 2;
  return {std::move(plain), std::move(quantized)};
}

}  // namespace lathe::ops
