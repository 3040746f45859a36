// Attention: softmax(Q K^T * scale + bias) V, with grouped heads, caches, masks, causal and windowed. In float32 and
// bfloat16 it is expanded; the reference also rounds each step to the narrower types.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/contrib_attention.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_infer.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

// One of Q, K, V, or a cache as [batch, heads, length, size], whatever its order in memory.
struct Heads {
  std::vector<double> values;
  int64_t batch = 0, heads = 0, length = 0, size = 0;
  bool is_packed = false;  // in memory [batch, length, heads * size]
  double at(int64_t b, int64_t h, int64_t t, int64_t i) const {
    const int64_t index =
        is_packed ? ((b * length + t) * heads + h) * size + i : ((b * heads + h) * length + t) * size + i;
    return values[static_cast<size_t>(index)];
  }
};

Heads heads_of(const ReferenceContext& context, const Tensor& tensor, const char* heads_attribute) {
  Heads result;
  const Dims& dims = tensor.dims();
  if (dims.size() == 4) {
    result = {{}, dims[0], dims[1], dims[2], dims[3], false};
  } else if (dims.size() == 3) {
    const int64_t heads = context.node.attributes.get_int(heads_attribute, 0);
    if (heads < 1 || dims[2] % heads != 0) {
      context.fail(std::string("attribute '") + heads_attribute + "' is " + std::to_string(heads) +
                   ", the hidden size " + std::to_string(dims[2]));
    }
    result = {{}, dims[0], heads, dims[1], dims[2] / heads, true};
  } else {
    context.fail("an operand has rank " + std::to_string(dims.size()) + ", expected 3 or 4");
  }
  result.values = reals_of(tensor);
  return result;
}

// Past and new rows one behind the other, [batch, heads, length, size].
Heads with_past(const ReferenceContext& context, const Heads& now, const Tensor& past) {
  Heads result{{}, now.batch, now.heads, now.length, now.size, false};
  int64_t past_length = 0;
  std::vector<double> before;
  if (past.defined()) {
    const Dims& dims = past.dims();
    if (dims.size() != 4 || dims[0] != now.batch || dims[1] != now.heads || dims[3] != now.size) {
      context.fail("a cache is " + to_string(dims) + ", expected " +
                   to_string(Dims{now.batch, now.heads, -1, now.size}));
    }
    past_length = dims[2];
    before = reals_of(past);
  }
  result.length += past_length;
  for (int64_t b = 0; b < now.batch; ++b) {
    for (int64_t h = 0; h < now.heads; ++h) {
      const auto row = before.begin() + (b * now.heads + h) * past_length * now.size;
      result.values.insert(result.values.end(), row, row + past_length * now.size);
      for (int64_t t = 0; t < now.length; ++t) {
        for (int64_t i = 0; i < now.size; ++i) result.values.push_back(now.at(b, h, t, i));
      }
    }
  }
  return result;
}

struct Mask {
  std::vector<double> values;  // added; -inf: excluded
  Dims dims{1, 1, 1, 1};
  bool is_given = false;
  double at(int64_t b, int64_t h, int64_t q, int64_t k) const {
    if (!is_given) return 0;
    if (dims[3] != 1 && k >= dims[3]) return -std::numeric_limits<double>::infinity();
    const int64_t index[4] = {b, h, q, k};
    int64_t offset = 0;
    for (size_t i = 0; i < 4; ++i) offset = offset * dims[i] + (dims[i] == 1 ? 0 : index[i]);
    return values[static_cast<size_t>(offset)];
  }
};

Mask mask_of(const ReferenceContext& context, const Tensor& tensor, const Heads& query, int64_t keys) {
  Mask mask;
  if (!tensor.defined()) return mask;
  if (tensor.rank() > 4) context.fail("attn_mask has rank " + std::to_string(tensor.rank()));
  std::copy(tensor.dims().begin(), tensor.dims().end(), mask.dims.end() - tensor.rank());
  const int64_t expected[] = {query.batch, query.heads, query.length, keys};
  for (size_t i = 0; i < 4; ++i) {
    // A mask may be shorter than the keys: what it does not reach is excluded.
    if (mask.dims[i] != 1 && mask.dims[i] != expected[i] && !(i == 3 && mask.dims[i] < keys && mask.dims[i] > 0)) {
      context.fail("attn_mask is " + to_string(tensor.dims()) + ", expected " +
                   to_string(Dims(std::begin(expected), std::end(expected))));
    }
  }
  mask.values = reals_of(tensor);
  mask.is_given = true;
  if (tensor.dtype() == DType::boolean) {
    for (double& value : mask.values) value = value != 0 ? 0 : -std::numeric_limits<double>::infinity();
  }
  return mask;
}

struct Rule {
  double scale, softcap;
  bool is_causal;
  int64_t left_window, right_window, output_mode;
  DType dtype, softmax_dtype;
};

Rule rule_of(const ReferenceContext& context, const Heads& query) {
  const Attributes& attributes = context.node.attributes;
  Rule rule{};
  const float scale = attributes.get_float("scale", 0);
  rule.dtype = context.inputs[0].dtype();
  // As the operator's definition does: both factors carry the root of the scale, rounded to their type.
  const double whole = attributes.has("scale") ? scale : 1 / std::sqrt(static_cast<double>(query.size));
  if (whole < 0) context.fail("attribute 'scale' is negative");
  rule.scale = rounded_to(rule.dtype, std::sqrt(whole));
  rule.softcap = attributes.get_float("softcap", 0);
  rule.is_causal = attributes.get_int("is_causal", 0) != 0;
  rule.left_window = attributes.get_int("left_window_size", -1);
  rule.right_window = attributes.get_int("right_window_size", -1);
  rule.output_mode = attributes.get_int("qk_matmul_output_mode", 0);
  if (rule.left_window < -1 || rule.right_window < -1) context.fail("a window size is below -1");
  if (rule.output_mode < 0 || rule.output_mode > 3) context.fail("attribute 'qk_matmul_output_mode' is out of range");
  const int64_t precision = attributes.get_int("softmax_precision", static_cast<int64_t>(rule.dtype));
  if (precision != 1 && precision != 10 && precision != 11 && precision != 16) {
    context.fail("attribute 'softmax_precision' is " + std::to_string(precision));
  }
  rule.softmax_dtype = static_cast<DType>(precision);
  return rule;
}

// One row of probabilities; a row with nothing to attend is zero. `logits` becomes what the fourth output shows.
void attend_row(const Rule& rule, const std::vector<double>& bias, std::vector<double>& logits,
                std::vector<double>& weights) {
  const auto round = [&](double value) { return rounded_to(rule.dtype, value); };
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  bool is_empty = true;
  double largest = kNever;
  for (size_t k = 0; k < logits.size(); ++k) {
    if (rule.softcap > 0) {
      const double capped = round(round(std::tanh(round(logits[k] / rule.softcap))) * rule.softcap);
      if (rule.output_mode >= 1) logits[k] = capped;
      weights[k] = round(capped + bias[k]);
    } else {
      weights[k] = round(logits[k] + bias[k]);
    }
    if (rule.output_mode == 2) logits[k] = weights[k];
    is_empty = is_empty && bias[k] == kNever;
    weights[k] = rounded_to(rule.softmax_dtype, weights[k]);
    largest = std::max(largest, weights[k]);
  }
  double sum = 0;
  for (double& weight : weights) {
    const double below = rounded_to(rule.softmax_dtype, weight - largest);
    weight = is_empty ? 0 : rounded_to(rule.softmax_dtype, std::exp(below));
    sum += weight;
  }
  sum = rounded_to(rule.softmax_dtype, sum);
  for (size_t k = 0; k < weights.size(); ++k) {
    if (!is_empty) weights[k] = round(rounded_to(rule.softmax_dtype, weights[k] / sum));
    if (rule.output_mode == 3) logits[k] = weights[k];
  }
}

struct Result {
  std::vector<double> y, qk;  // [batch, heads, queries, v size], [batch, heads, queries, keys]
};

Result attend(const ReferenceContext& context, const Rule& rule, const Heads& query, const Heads& key,
              const Heads& value, const Mask& mask, int64_t past_length, const std::vector<int64_t>& valid_keys) {
  Result result;
  const int64_t group = query.heads / key.heads;
  std::vector<double> logits(static_cast<size_t>(key.length)), weights(logits), bias(logits);
  const auto round = [&](double v) { return rounded_to(rule.dtype, v); };
  for (int64_t row = 0; row < query.batch * query.heads * query.length; ++row) {
    const int64_t q = row % query.length, h = row / query.length % query.heads, b = row / query.length / query.heads;
    const bool is_padded = !valid_keys.empty();
    const int64_t valid = is_padded ? valid_keys[static_cast<size_t>(b)] : key.length;
    const int64_t position = q + (is_padded ? valid - query.length : past_length);
    for (int64_t k = 0; k < key.length; ++k) {
      double dot = 0;
      for (int64_t i = 0; i < query.size; ++i) {
        dot += round(query.at(b, h, q, i) * rule.scale) * round(key.at(b, h / group, k, i) * rule.scale);
      }
      const auto at = static_cast<size_t>(k);
      logits[at] = round(dot);
      const bool is_out = (rule.is_causal && k > position) || k >= valid ||
                          (rule.left_window >= 0 && position - k > rule.left_window) ||
                          (rule.right_window >= 0 && k - position > rule.right_window);
      bias[at] = is_out ? -std::numeric_limits<double>::infinity() : mask.at(b, h, q, k);
    }
    attend_row(rule, bias, logits, weights);
    for (int64_t i = 0; i < value.size; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < key.length; ++k) {
        const double weight = weights[static_cast<size_t>(k)];
        if (weight != 0) sum += weight * value.at(b, h / group, k, i);
      }
      result.y.push_back(sum);
    }
    if (context.outputs.size() > 3) result.qk.insert(result.qk.end(), logits.begin(), logits.end());
  }
  return result;
}

Tensor packed_result(const ReferenceContext& context, const Result& result, const Heads& query, int64_t size) {
  const DType dtype = context.inputs[0].dtype();
  if (!query.is_packed) {
    return tensor_of_reals(context, dtype, {query.batch, query.heads, query.length, size}, result.y);
  }
  Tensor y = make_output(context, dtype, {query.batch, query.length, query.heads * size});
  int64_t from = 0;
  for (IndexWalk at({query.batch, query.heads, query.length, size}); !at.done(); at.next(), ++from) {
    const auto& i = at.index();
    store_real(y, ((i[0] * query.length + i[2]) * query.heads + i[1]) * size + i[3],
               result.y[static_cast<size_t>(from)]);
  }
  return y;
}

void run_attention(ReferenceContext& context) {
  const auto optional_input = [&](size_t i) { return context.has_input(i) ? context.inputs[i] : Tensor(); };
  const Heads query = heads_of(context, context.inputs[0], "q_num_heads");
  const Tensor past_key = optional_input(4), past_value = optional_input(5);
  if (past_key.defined() != past_value.defined()) context.fail("has one of past_key and past_value");
  const Heads key = with_past(context, heads_of(context, context.inputs[1], "kv_num_heads"), past_key);
  const Heads value = with_past(context, heads_of(context, context.inputs[2], "kv_num_heads"), past_value);
  if (key.batch != query.batch || value.batch != query.batch || key.size != query.size || key.heads < 1 ||
      value.heads != key.heads || value.length != key.length || query.heads % key.heads != 0) {
    context.fail("Q is " + to_string(context.inputs[0].dims()) + ", K " + to_string(context.inputs[1].dims()) + ", V " +
                 to_string(context.inputs[2].dims()));
  }
  std::vector<int64_t> valid_keys;
  if (context.has_input(6)) {
    valid_keys = integers_of_any(context.inputs[6]);
    if (static_cast<int64_t>(valid_keys.size()) != query.batch || past_key.defined()) {
      context.fail("nonpad_kv_seqlen has another batch, or stands beside a cache");
    }
  }
  const Mask mask = mask_of(context, optional_input(3), query, key.length);
  const int64_t past_length = past_key.defined() ? past_key.dims()[2] : 0;
  const Result result = attend(context, rule_of(context, query), query, key, value, mask, past_length, valid_keys);
  context.outputs[0] = packed_result(context, result, query, value.size);
  const auto store = [&](size_t i, const Tensor& like, Dims dims, const std::vector<double>& values) {
    if (i < context.outputs.size())
      context.outputs[i] = tensor_of_reals(context, like.dtype(), std::move(dims), values);
  };
  store(1, context.inputs[1], {key.batch, key.heads, key.length, key.size}, key.values);
  store(2, context.inputs[2], {value.batch, value.heads, value.length, value.size}, value.values);
  store(3, context.inputs[0], {query.batch, query.heads, query.length, key.length}, result.qk);
}

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
  const TensorType& type = context.input_type(input);
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
    const TensorType& mask = context.input_type(3);
    if (!mask.has_rank || mask.rank() < 1 || mask.rank() > 4 || !keys.known()) return false;
    if (mask.dtype != type_of(context) && mask.dtype != DType::boolean) return false;
    if (mask.dims.back().extent != keys.extent && mask.dims.back().extent != 1) return false;
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
                     .reference = run_attention,
                     .expand = expand_attention}};
}

}  // namespace

std::vector<OpDef> attention_ops() {
  return {attention(23, 23, false, false), attention(24, 24, true, false), attention(25, 1 << 20, true, true)};
}

}  // namespace lathe::ops
