// com.microsoft's Attention (projection included), its quantized form QAttention, and MultiHeadAttention.
#include <cmath>

#include "ops/attention/contrib_attention.h"
#include "ops/gemm/contrib_products.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

constexpr float kFilterValue = -10000;  // of excluded scores, unless the node says otherwise

struct HeadSettings {
  int64_t heads;
  double scale;
  bool is_causal;
  double filter_value;
};

// `hidden`: elements of all heads of the query.
HeadSettings settings_of(const ExpandContext& context, int64_t hidden) {
  const Attributes& attributes = context.node.attributes;
  HeadSettings settings{};
  settings.heads = attributes.get_int("num_heads", 0);
  if (settings.heads < 1 || hidden % settings.heads != 0) {
    context.fail("attribute 'num_heads' is " + std::to_string(settings.heads) + ", the hidden size " +
                 std::to_string(hidden));
  }
  const auto given = static_cast<double>(attributes.get_float("scale", 0));
  settings.scale =
      given != 0 ? given : 1 / std::sqrt(static_cast<double>(hidden) / static_cast<double>(settings.heads));
  settings.is_causal = attributes.get_int("unidirectional", 0) != 0;
  settings.filter_value = static_cast<double>(attributes.get_float("mask_filter_value", kFilterValue));
  return settings;
}

// Adds what the node masks to `parts`. False: not yet.
bool add_masks(ExpandContext& context, AttentionParts& parts, const HeadSettings& settings, ValueId mask,
               const MaskShape& shape) {
  const DType dtype = context.type(parts.query).dtype;
  if (mask != ValueId::none) {
    const auto bias = add_mask(context, mask, shape, dtype, settings.filter_value);
    if (!bias) return false;
    parts.biases.push_back(*bias);
  }
  if (settings.is_causal) {
    const auto bias = add_causal_mask(context, shape, dtype);
    if (!bias) return false;
    parts.biases.push_back(*bias);
  }
  return true;
}

// ---- Attention

// The hidden sizes of query, key and value; empty: not known yet.
std::vector<int64_t> hidden_sizes(const ExpandContext& context) {
  const TensorType& weights = context.input_type(1);
  if (!weights.has_rank || weights.rank() != 2 || !weights.dims[1].known()) return {};
  std::vector<int64_t> sizes = context.node.attributes.get_ints("qkv_hidden_sizes");
  const int64_t all = weights.dims[1].extent;
  if (sizes.empty()) sizes.assign(3, all / 3);
  if (sizes.size() != 3 || sizes[0] != sizes[1] || sizes[0] < 1 || sizes[2] < 1 ||
      sizes[0] + sizes[1] + sizes[2] != all) {
    context.fail("the weights have " + std::to_string(all) + " columns, which are not those of query, key and value");
  }
  return sizes;
}

// The three projections: one product each, so that nothing has to be cut apart when the weights are constant.
std::vector<ValueId> add_projections(ExpandContext& context, const std::vector<int64_t>& sizes) {
  const std::vector<ValueId> weights = add_split(context, context.input(1), 1, sizes);
  std::vector<ValueId> biases(3, ValueId::none), projected;
  if (context.has_input(2)) biases = add_split(context, context.input(2), 0, sizes);
  for (size_t i = 0; i < 3; ++i) {
    ValueId x = context.add("MatMul", {context.input(0), weights[i]});
    if (biases[i] != ValueId::none) x = context.add("Add", {x, biases[i]});
    projected.push_back(x);
  }
  return projected;
}

void refuse(const ExpandContext& context, std::initializer_list<const char*> attributes) {
  for (const char* name : attributes) {
    if (context.node.attributes.get_int(name, 0) != 0) context.unsupported(std::string("attribute '") + name + "'");
  }
}

// From the projections on. `past`: [2, batch, heads, length, size]; `bias`: added to the scores.
bool expand_projected(ExpandContext& context, const std::vector<ValueId>& projected, const HeadSettings& settings,
                      ValueId mask, ValueId past, ValueId bias) {
  const TensorType input = context.input_type(0);
  AttentionParts parts{.scale = settings.scale};
  parts.query = add_split_heads(context, projected[0], settings.heads);
  parts.key = add_split_heads(context, projected[1], settings.heads);
  parts.value = add_split_heads(context, projected[2], settings.heads);
  MaskShape shape{input.dims[0], input.dims[1], input.dims[1], Dim{0, ""}};
  if (past != ValueId::none) {
    const TensorType& type = context.type(past);
    if (!type.has_rank) return false;
    if (type.rank() != 5) context.fail("the past has rank " + std::to_string(type.rank()) + ", expected 5");
    shape.past = type.dims[3];
    shape.keys = sum_of(shape.past, shape.queries);
    const std::vector<ValueId> pair = add_split(context, past, 0, {1, 1});
    const ValueId first = context.longs({0});
    parts.key = add_past(context, context.add("Squeeze", {pair[0], first}), parts.key);
    parts.value = add_past(context, context.add("Squeeze", {pair[1], first}), parts.value);
  }
  if (!add_masks(context, parts, settings, mask, shape)) return false;
  if (bias != ValueId::none) parts.biases.push_back(bias);
  if (context.has_output(1)) {
    const ValueId first = context.longs({0});
    const ValueId key = context.add("Unsqueeze", {parts.key, first});
    const ValueId value = context.add("Unsqueeze", {parts.value, first});
    context.set_output(1, context.add("Concat", {key, value}, {{"axis", int64_t{0}}}));
  }
  context.set_output(0, add_attention(context, parts).output);
  return true;
}

// False when a mask of the node needs extents that are not known; asked first, for it costs nothing.
bool is_ready(const ExpandContext& context, int mask) {
  const TensorType& input = context.input_type(0);
  if (!input.has_rank || input.rank() != 3) return false;
  const bool needs_lengths =
      context.node.attributes.get_int("unidirectional", 0) != 0 ||
      (context.has_input(mask) && (!context.input_type(mask).has_rank || context.input_type(mask).rank() == 1 ||
                                   context.input_type(mask).rank() == 4));
  return !needs_lengths || (input.dims[0].known() && input.dims[1].known());
}

// Inputs: x, weights, bias, mask, past, attention_bias, past_sequence_length.
bool expand_attention(ExpandContext& context) {
  refuse(context, {"do_rotary", "past_present_share_buffer"});
  const std::vector<int64_t> sizes = hidden_sizes(context);
  if (sizes.empty() || !is_ready(context, 3)) return false;
  const HeadSettings settings = settings_of(context, sizes[0]);
  if (sizes[2] % settings.heads != 0) context.fail("the value's hidden size is no multiple of 'num_heads'");
  return expand_projected(context, add_projections(context, sizes), settings, context.input(3), context.input(4),
                          context.input(5));
}

// Inputs: x, weights, bias, x_scale, weights_scale, mask, x_zero_point, weights_zero_point, past.
bool expand_qattention(ExpandContext& context) {
  refuse(context, {"do_rotary", "past_present_share_buffer"});
  require_inputs(context, {3, 4});
  const std::vector<int64_t> sizes = hidden_sizes(context);
  if (sizes.empty() || !is_ready(context, 5)) return false;
  const HeadSettings settings = settings_of(context, sizes[0]);
  // A scale or zero point for each column is cut like the columns.
  const auto pieces = [&](int i, int64_t axis) {
    if (!context.has_input(i)) return std::vector<ValueId>(3, ValueId::none);
    const TensorType type = context.input_type(i);
    const bool is_one = type.has_rank && (type.rank() == 0 || type.dims[0].extent == 1);
    if (axis == 0 && is_one) return std::vector<ValueId>(3, context.input(i));
    return add_split(context, context.input(i), axis, sizes);
  };
  const std::vector<ValueId> weights = pieces(1, 1), biases = pieces(2, 0), scales = pieces(4, 0), zeros = pieces(7, 0);
  std::vector<ValueId> projected;
  for (size_t i = 0; i < 3; ++i) {
    projected.push_back(add_integer_product(context, {.a = context.input(0),
                                                      .a_scale = context.input(3),
                                                      .a_zero_point = context.input(6),
                                                      .b = weights[i],
                                                      .b_scale = scales[i],
                                                      .b_zero_point = zeros[i],
                                                      .bias = biases[i]}));
  }
  return expand_projected(context, projected, settings, context.input(5), context.input(8), ValueId::none);
}

void infer_qattention(InferContext& context) {
  infer_by_expansion(context);
  for (int i = 0; i < context.output_count(); ++i) {
    TensorType type = context.outputs()[static_cast<size_t>(i)];
    type.dtype = context.has_input(3) ? context.input(3).dtype : DType::f32;
    context.set_output(i, std::move(type));
  }
}

// ---- MultiHeadAttention: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value, ...

struct Projected {
  ValueId query, key, value;  // [batch, heads, length, size]
  Dim key_length;
};

// Cuts [batch, length, heads, pieces, size] along axis 3; each piece as [batch, heads, length, size].
std::vector<ValueId> unpacked(ExpandContext& context, ValueId packed, size_t pieces) {
  std::vector<ValueId> heads;
  for (const ValueId piece : add_split(context, packed, 3, std::vector<int64_t>(pieces, 1))) {
    const ValueId squeezed = context.add("Squeeze", {piece, context.longs({3})});
    heads.push_back(add_transposed(context, squeezed, {0, 2, 1, 3}));
  }
  return heads;
}

Projected packed_operands(ExpandContext& context) {
  const TensorType query = context.input_type(0);
  if (context.has_input(3)) context.unsupported("a bias of packed operands");
  if (query.rank() == 5) {
    const std::vector<ValueId> all = unpacked(context, context.input(0), 3);
    return {all[0], all[1], all[2], query.dims[1]};
  }
  const int64_t heads = context.node.attributes.get_int("num_heads", 0);
  const Dim length = context.input_type(1).dims[1];
  const std::vector<ValueId> pair = unpacked(context, context.input(1), 2);
  return {add_split_heads(context, context.input(0), heads), pair[0], pair[1], length};
}

// Operands [batch, length, hidden]; key and value may be [batch, heads, length, size] already.
std::optional<Projected> separate_operands(ExpandContext& context, const HeadSettings& settings) {
  require_inputs(context, {1, 2});
  const TensorType query = context.input_type(0), key = context.input_type(1), value = context.input_type(2);
  if (!value.has_rank) return std::nullopt;
  std::vector<ValueId> operands{context.input(0), context.input(1), context.input(2)};
  if (context.has_input(3)) {
    const TensorType bias = context.input_type(3);
    if (!bias.has_rank || bias.rank() != 1 || !bias.dims[0].known()) return std::nullopt;
    const int64_t hidden = query.dims[2].extent, rest = bias.dims[0].extent - 2 * hidden;
    if (rest < 1) context.fail("the bias has " + std::to_string(bias.dims[0].extent) + " elements");
    const std::vector<ValueId> biases = add_split(context, context.input(3), 0, {hidden, hidden, rest});
    const bool is_split[] = {false, key.rank() == 4, value.rank() == 4};
    for (size_t i = 0; i < 3; ++i) {
      if (!is_split[i]) operands[i] = context.add("Add", {operands[i], biases[i]});
    }
  }
  Projected result{};
  result.query = add_split_heads(context, operands[0], settings.heads);
  result.key = key.rank() == 4 ? operands[1] : add_split_heads(context, operands[1], settings.heads);
  result.value = value.rank() == 4 ? operands[2] : add_split_heads(context, operands[2], settings.heads);
  result.key_length = key.rank() == 4 ? key.dims[2] : key.dims[1];
  return result;
}

// The query's hidden size; nullopt: not known yet, or something else that the expansion asks for.
std::optional<int64_t> ready_hidden_size(const ExpandContext& context) {
  const TensorType& query = context.input_type(0);
  if (!query.has_rank || (query.rank() != 3 && query.rank() != 5)) return std::nullopt;
  for (const int i : {1, 4, 6}) {
    if (context.has_input(i) && !context.input_type(i).has_rank) return std::nullopt;
  }
  const bool is_packed = query.rank() == 5;
  if (is_packed && query.dims[2].known() && query.dims[4].known()) {
    return product_of(query.dims[2].extent, query.dims[4].extent);
  }
  if (is_packed || !query.dims[2].known()) return std::nullopt;
  return query.dims[2].extent;
}

bool expand_multi_head(ExpandContext& context) {
  const std::optional<int64_t> hidden = ready_hidden_size(context);
  if (!hidden) return false;
  if (context.has_input(8) || context.has_input(9)) context.unsupported("a past in a shared buffer");
  const HeadSettings settings = settings_of(context, *hidden);
  const bool is_packed =
      context.input_type(0).rank() == 5 || (context.has_input(1) && context.input_type(1).rank() == 5);
  const auto operands = is_packed ? packed_operands(context) : separate_operands(context, settings);
  if (!operands) return false;
  const TensorType query = context.input_type(0);
  MaskShape shape{query.dims[0], query.dims[1], operands->key_length, Dim{0, ""}};
  if (context.has_input(6)) {
    if (context.input_type(6).rank() != 4) context.fail("past_key must have rank 4");
    shape.past = context.input_type(6).dims[2];
    shape.keys = sum_of(shape.past, shape.keys);
  }
  AttentionParts parts{.scale = settings.scale};
  parts.query = operands->query;
  parts.key = add_past(context, context.input(6), operands->key);
  parts.value = add_past(context, context.input(7), operands->value);
  if (!add_masks(context, parts, settings, context.input(4), shape)) return false;
  if (context.has_input(5)) parts.biases.push_back(context.input(5));
  const AttentionResult result = add_attention(context, parts);
  context.set_output(0, result.output);
  context.set_output(1, parts.key);
  context.set_output(2, parts.value);
  context.set_output(3, result.scores);
  return true;
}

}  // namespace

std::vector<OpDef> contrib_attention_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> attributes = {
      {"num_heads", Kind::integer, true},          {"unidirectional", Kind::integer},    {"scale", Kind::real},
      {"mask_filter_value", Kind::real},           {"qkv_hidden_sizes", Kind::integers}, {"do_rotary", Kind::integer},
      {"past_present_share_buffer", Kind::integer}};
  OpDef attention = composite("Attention", 2, 7, expand_attention, attributes);
  attention.schema.max_outputs = 2;
  OpDef quantized = composite("QAttention", 5, 9, expand_qattention, attributes);
  quantized.schema.max_outputs = 2;
  quantized.schema.infer = infer_qattention;
  OpDef multi_head = composite("MultiHeadAttention", 1, 10, expand_multi_head, attributes);
  multi_head.schema.max_outputs = 4;
  return {std::move(attention), std::move(quantized), std::move(multi_head)};
}

}  // namespace lathe::ops
