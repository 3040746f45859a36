// Attention: softmax(Q K^T * scale + bias) V, with grouped heads, caches, masks, causal and windowed. In float32 and
// bfloat16 it is expanded.
#include <cmath>
#include <limits>

#include "ops/attention/attention_reference.h"
#include "ops/attention/contrib_attention.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// ---- Inference

// [batch, heads, length, size] of an operand of rank 3 or 4; unknown where it is.
std::vector<Dim> head_dims(const InferContext& context, int input, const char* heads_attribute) {
  std::vector<Dim> dims(4);
  const TensorType& type = context.input(input);
  if (!type.has_rank) return dims;
  if (type.rank() == 4) return type.dims;
  if (type.rank() != 3) context.fail("input " + std::to_string(input) + " has rank " + std::to_string(type.rank()));
  const int64_t heads = context.node.attributes.get_int(heads_attribute, 0);
  if (heads < 1) context.fail(std::string("attribute '") + heads_attribute + "' is missing");
  dims = {type.dims[0], known_dim(heads), type.dims[1], Dim()};
  if (type.dims[2].known()) dims[3] = known_dim(type.dims[2].extent / heads);
  return dims;
}

Dim product(const Dim& a, const Dim& b) {
  const auto value = product_of(a.extent, b.extent);
  return value ? known_dim(*value) : Dim();
}

void infer_attention(InferContext& context) {
  const TensorType& q = context.input(0);
  const DType key_type = context.input(1).dtype, value_type = context.input(2).dtype;
  if (!q.has_rank) {
    const DType types[] = {q.dtype, key_type, value_type, q.dtype};
    for (int i = 0; i < 4; ++i) context.set_output(i, TensorType::unranked(types[i]));
    return;
  }
  const std::vector<Dim> query = head_dims(context, 0, "q_num_heads"), key = head_dims(context, 1, "kv_num_heads"),
                         value = head_dims(context, 2, "kv_num_heads");
  Dim total = key[2];
  if (context.has_input(4)) {
    const TensorType& past = context.input(4);
    const bool is_known = past.has_rank && past.rank() == 4 && past.dims[2].known() && key[2].known();
    total = is_known ? known_dim(past.dims[2].extent + key[2].extent) : Dim();
  }
  if (q.rank() == 4) {
    context.set_output(0, {q.dtype, true, {query[0], query[1], query[2], value[3]}, {}});
  } else {
    context.set_output(0, {q.dtype, true, {query[0], query[2], product(query[1], value[3])}, {}});
  }
  context.set_output(1, {key_type, true, {key[0], key[1], total, key[3]}, {}});
  context.set_output(2, {value_type, true, {value[0], value[1], total, value[3]}, {}});
  context.set_output(3, {q.dtype, true, {query[0], query[1], query[2], total}, {}});
}

// ---- Expansion

constexpr double kNever = -std::numeric_limits<double>::infinity();

DType type_of(const ExpandContext& context) { return context.input_type(0).dtype; }

// An operand as [batch, heads, length, size]. none: its extents are not known yet, or make no sense.
ValueId add_heads(ExpandContext& context, int input, const char* heads_attribute) {
  const TensorType type = context.input_type(input);
  if (type.dtype != type_of(context) || !type.is_static() || (type.rank() != 3 && type.rank() != 4))
    return ValueId::none;
  if (type.rank() == 4) return context.input(input);
  const int64_t heads = context.node.attributes.get_int(heads_attribute, 0);
  if (heads < 1 || type.dims[2].extent % heads != 0) return ValueId::none;
  return add_split_heads(context, context.input(input), heads);
}

// 0 and -inf for what the positions alone decide, [queries, keys]. Undefined: extents are not known, or the positions
// are data.
Tensor position_bias(const ExpandContext& context, const Dim& queries, const Dim& keys, const Dim& past) {
  const Attributes& attributes = context.node.attributes;
  if (context.has_input(6) || !queries.known() || !keys.known() || !past.known()) return {};
  const bool is_causal = attributes.get_int("is_causal", 0) != 0;
  const int64_t left = attributes.get_int("left_window_size", -1), right = attributes.get_int("right_window_size", -1);
  Tensor bias(type_of(context), {queries.extent, keys.extent});
  for (int64_t q = 0; q < queries.extent; ++q) {
    const int64_t position = past.extent + q;
    for (int64_t k = 0; k < keys.extent; ++k) {
      const bool is_out =
          (is_causal && k > position) || (left >= 0 && position - k > left) || (right >= 0 && k - position > right);
      store_real(bias, q * keys.extent + k, is_out ? kNever : 0);
    }
  }
  return bias;
}

ValueId bias_of_flags(ExpandContext& context, ValueId keeps) {
  return context.add("Where",
                     {keeps, add_scalar(context, type_of(context), 0), add_scalar(context, type_of(context), kNever)});
}

// Keys below each sequence's own length, [batch, 1, 1, keys].
ValueId length_bias(ExpandContext& context, const Dim& keys) {
  Tensor positions(DType::i64, {keys.extent});
  for (int64_t i = 0; i < keys.extent; ++i) positions.mutable_data<int64_t>()[i] = i;
  const ValueId lengths = context.add("Unsqueeze", {context.input(6), context.longs({1, 2, 3})});
  return bias_of_flags(context, context.add("Less", {context.constant(std::move(positions)), lengths}));
}

// attn_mask and nonpad_kv_seqlen as biases. False: a form that the reference must see to.
bool add_mask_biases(ExpandContext& context, AttentionParts& parts, const Dim& keys) {
  if (context.has_input(3)) {
    const TensorType mask = context.input_type(3);
    if (!mask.has_rank || mask.rank() < 1 || mask.rank() > 4 || !keys.known()) return false;
    if (mask.dtype != type_of(context) && mask.dtype != DType::boolean) return false;
    if (mask.dims.back().extent != keys.extent && mask.dims.back().extent != 1) return false;
    if (parts.shares_keys && !mask.is_static()) return false;  // one for all heads, or one for each: the run tells
    parts.biases.push_back(mask.dtype != DType::boolean ? context.input(3) : bias_of_flags(context, context.input(3)));
  }
  if (context.has_input(6)) {
    if (!keys.known() || context.input_type(6).dtype != DType::i64 || context.has_input(4)) return false;
    parts.biases.push_back(length_bias(context, keys));
  }
  parts.zeroes_empty = !parts.biases.empty();
  return true;
}

bool has_windows(const Attributes& attributes) {
  return attributes.get_int("left_window_size", -1) != -1 || attributes.get_int("right_window_size", -1) != -1;
}

// What the reference knows better: other types, and the scores as a result.
bool is_expandable(const ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  if (type_of(context) != DType::f32 && type_of(context) != DType::bf16) return false;
  const bool is_plain = attributes.get_int("softmax_precision", 1) == 1 && attributes.get_float("scale", 1) >= 0 &&
                        attributes.get_float("softcap", 0) >= 0 && attributes.get_int("left_window_size", -1) >= -1 &&
                        attributes.get_int("right_window_size", -1) >= -1;
  return is_plain && !context.has_output(3) && context.has_input(4) == context.has_input(5);
}

bool expand_attention(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  if (!is_expandable(context)) return false;
  AttentionParts parts{};
  parts.query = add_heads(context, 0, "q_num_heads");
  parts.key = add_heads(context, 1, "kv_num_heads");
  parts.value = add_heads(context, 2, "kv_num_heads");
  for (const ValueId operand : {parts.query, parts.key, parts.value}) {
    if (operand == ValueId::none) return false;
  }
  for (const int past : {4, 5}) {
    if (!context.has_input(past)) continue;
    const TensorType& type = context.input_type(past);
    if (type.dtype != type_of(context) || !type.is_static() || type.rank() != 4) return false;
  }
  const Dim past = context.has_input(4) ? context.input_type(4).dims[2] : known_dim(0);
  parts.key = add_past(context, context.input(4), parts.key);
  parts.value = add_past(context, context.input(5), parts.value);
  const std::vector<Dim> query = context.type(parts.query).dims, key = context.type(parts.key).dims,
                         value = context.type(parts.value).dims;
  // A product would broadcast where the operator does not.
  for (const size_t axis : {0, 1, 2}) {
    if (key[axis].extent != value[axis].extent) return false;
  }
  if (query[0].extent != key[0].extent || query[3].extent != key[3].extent || query[3].extent < 1) return false;
  if (key[1].extent < 1 || query[1].extent % key[1].extent != 0) return false;
  parts.shares_keys = query[1].extent != key[1].extent;
  parts.scale = attributes.has("scale") ? static_cast<double>(attributes.get_float("scale", 1))
                                        : 1 / std::sqrt(static_cast<double>(query[3].extent));
  parts.softcap = static_cast<double>(attributes.get_float("softcap", 0));
  if (!add_mask_biases(context, parts, key[2])) return false;
  if (attributes.get_int("is_causal", 0) != 0 || has_windows(attributes)) {
    Tensor bias = position_bias(context, query[2], key[2], past);
    if (!bias.defined()) return false;
    parts.biases.push_back(context.constant(std::move(bias)));
    // Queries behind the last key see none of a window.
    parts.zeroes_empty = parts.zeroes_empty || has_windows(attributes);
  }
  const ValueId heads = add_attention_of_heads(context, parts).output;
  context.set_output(0, context.input_type(0).rank() == 3 ? add_joined_heads(context, heads) : heads);
  context.set_output(1, parts.key);
  context.set_output(2, parts.value);
  return true;
}

OpDef attention(int since, int until, bool has_lengths, bool has_windows) {
  using Kind = AttributeSpec::Kind;
  std::vector<AttributeSpec> attributes{{"is_causal", Kind::integer},
                                        {"scale", Kind::real},
                                        {"q_num_heads", Kind::integer},
                                        {"kv_num_heads", Kind::integer},
                                        {"softcap", Kind::real},
                                        {"softmax_precision", Kind::integer},
                                        {"qk_matmul_output_mode", Kind::integer}};
  if (has_windows) {
    attributes.push_back({"left_window_size", Kind::integer});
    attributes.push_back({"right_window_size", Kind::integer});
  }
  return {.schema = {.name = "Attention",
                     .since = since,
                     .until = until,
                     .min_inputs = 3,
                     .max_inputs = has_lengths ? 7 : 6,
                     .max_outputs = 4,
                     .attributes = std::move(attributes),
                     .infer = infer_attention,
                     .reference = run_attention_reference,
                     .expand = expand_attention}};
}

}  // namespace

std::vector<OpDef> attention_ops() {
  return {attention(23, 23, false, false), attention(24, 24, true, false), attention(25, 1 << 20, true, true)};
}

}  // namespace lathe::ops
