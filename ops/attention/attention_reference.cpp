#include "ops/attention/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"

namespace lathe {
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

}  // namespace

void run_attention_reference(ReferenceContext& context) {
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

}  // namespace lathe
