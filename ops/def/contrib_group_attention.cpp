// com.microsoft's GroupQueryAttention: attention of decoders, over a cache of keys and values. Each sequence of a batch
// may have its own length; a single one is expanded, several run by the reference.
#include <algorithm>

#include "ops/attention/contrib_attention.h"
#include "ops/attention/group_query.h"
#include "ops/copy/copy_infer.h"
#include "ops/numbers.h"

namespace lathe::ops {
namespace {

using namespace group_query;

void refuse_quantized_cache(const ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  if (context.has_input(kKeyScale) || attributes.get_int("kv_cache_bit_width", 0) != 0) {
    context.unsupported("a quantized cache");
  }
  if (attributes.get_int("sliding_window_cache", 0) != 0) context.unsupported("attribute 'sliding_window_cache'");
}

// ---- Expansion

// Extents as numbers, when all that matter are known and there is one sequence whose past is just as long as its cache.
struct Extents {
  int64_t length, past, total, hidden;
};

std::optional<Extents> extents_of(const ExpandContext& context) {
  const TensorType& query = context.input_type(kQuery);
  const Tensor total = context.constant_of(context.input(kTotal));
  if (!query.is_static() || query.rank() != 3 || query.dims[0].extent != 1 || !total.defined() || total.size() != 1) {
    return std::nullopt;
  }
  Extents e{query.dims[1].extent, 0, integers_of_any(total)[0], query.dims[2].extent};
  if (context.has_input(kPastKey)) {
    const TensorType& past = context.input_type(kPastKey);
    if (!past.is_static() || past.rank() != 4) return std::nullopt;
    e.past = past.dims[2].extent;
  }
  if (e.past + e.length != e.total || e.length == 0) return std::nullopt;
  return e;
}

// Normalized and turned, as the node asks; [1, heads, length, size].
ValueId prepared(ExpandContext& context, ValueId x, int64_t heads, const Settings& s, Input norm,
                 const std::optional<Rotation>& rotation) {
  ValueId split = context.add("Reshape", {x, context.longs({0, 0, heads, -1})});
  if (context.has_input(norm)) {
    split = context.add("RMSNormalization", {split, context.input(norm)},
                        {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(s.norm_epsilon)}});
  }
  if (rotation) split = add_rotated(context, split, *rotation);
  return add_transposed(context, split, {0, 2, 1, 3});
}

// The rows of the tables for these tokens, [1, length, 1, half].
std::optional<Rotation> rotation_of(ExpandContext& context, const Settings& s, const Extents& e) {
  if (!s.rotates) return std::nullopt;
  const TensorType& cache = context.input_type(kCos);
  Rotation rotation{.half = cache.dims[1].extent, .size = s.size, .is_interleaved = s.is_interleaved};
  const auto rows = [&](Input table) {
    ValueId taken;
    if (context.has_input(kPositions)) {
      taken = context.add("Gather", {context.input(table), context.input(kPositions)}, {{"axis", int64_t{0}}});
    } else {
      taken = context.add(
          "Slice", {context.input(table), context.longs({e.past}), context.longs({e.total}), context.longs({0})});
      taken = context.add("Unsqueeze", {taken, context.longs({0})});
    }
    return context.add("Unsqueeze", {taken, context.longs({2})});
  };
  rotation.cos = rows(kCos);
  rotation.sin = rows(kSin);
  return rotation;
}

bool expand_group_query(ExpandContext& context) {
  refuse_quantized_cache(context);
  const std::optional<Extents> extents = extents_of(context);
  if (!extents || context.has_input(kSink) || context.has_output(3)) return false;
  const Settings s = settings_of(context, extents->hidden, !context.has_input(kKey));
  if (s.is_smooth || !s.is_causal) return false;
  if (s.rotates) {
    require_inputs(context, {kCos, kSin});
    const TensorType& cache = context.input_type(kCos);
    if (!cache.is_static() || cache.rank() != 2 || 2 * cache.dims[1].extent > s.size) return false;
    if (!context.has_input(kPositions) && cache.dims[0].extent < extents->total) return false;
  }
  std::vector<ValueId> qkv{context.input(kQuery), context.input(kKey), context.input(kValue)};
  if (!context.has_input(kKey)) {
    qkv = add_split(context, context.input(kQuery), 2, {s.heads * s.size, s.key_heads * s.size, s.key_heads * s.size});
  }
  const std::optional<Rotation> rotation = rotation_of(context, s, *extents);
  AttentionParts parts{.scale = s.scale, .softcap = s.softcap, .shares_keys = s.heads != s.key_heads};
  parts.query = prepared(context, qkv[0], s.heads, s, kQueryNorm, rotation);
  parts.key = add_past(context, context.input(kPastKey), prepared(context, qkv[1], s.key_heads, s, kKeyNorm, rotation));
  parts.value = add_past(context, context.input(kPastValue), add_split_heads(context, qkv[2], s.key_heads));
  const bool is_windowed = s.window >= 0 && s.window < extents->total;
  if (extents->length > 1 || is_windowed) {
    const MaskShape shape{known_dim(1), known_dim(extents->length), known_dim(extents->total),
                          known_dim(extents->past)};
    const DType dtype = context.input_type(kQuery).dtype;
    parts.biases.push_back(*add_causal_mask(context, shape, dtype, s.window));
  }
  if (context.has_input(kBias)) parts.biases.push_back(context.input(kBias));
  context.set_output(0, add_attention(context, parts).output);
  context.set_output(1, parts.key);
  context.set_output(2, parts.value);
  return true;
}

// ---- Inference

void infer_group_query(InferContext& context) {
  const TensorType& query = context.input(kQuery);
  const DType cache_type = context.has_input(kPastKey) ? context.input(kPastKey).dtype : query.dtype;
  for (int i = 0; i < 4; ++i) context.set_output(i, TensorType::unranked(i == 0 || i == 3 ? query.dtype : cache_type));
  if (!query.has_rank) return;
  if (query.rank() != 3) context.fail("the query has rank " + std::to_string(query.rank()) + ", expected 3");
  if (!query.dims[2].known()) return;
  const Settings s = settings_of(context, query.dims[2].extent, !context.has_input(kKey));
  context.set_output(0, {query.dtype, true, {query.dims[0], query.dims[1], known_dim(s.heads * s.size)}, {}});
  Dim length;
  const Tensor total = context.constant(kTotal);
  if (total.defined() && total.size() == 1) {
    int64_t past = 0;
    bool is_known = true;
    if (context.has_input(kPastKey)) {
      const TensorType& type = context.input(kPastKey);
      is_known = type.has_rank && type.rank() == 4 && type.dims[2].known();
      if (is_known) past = type.dims[2].extent;
    }
    if (is_known) length = known_dim(std::max(past, integers_of_any(total)[0]));
  }
  const TensorType cache{cache_type, true, {query.dims[0], known_dim(s.key_heads), length, known_dim(s.size)}, {}};
  context.set_output(1, cache);
  context.set_output(2, cache);
  context.set_output(3, {query.dtype, true, {query.dims[0], known_dim(s.heads), query.dims[1], Dim()}, {}});
}

}  // namespace

std::vector<OpDef> contrib_group_attention_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef def = composite("GroupQueryAttention", 1, 16, expand_group_query,
                        {{"num_heads", Kind::integer, true},
                         {"kv_num_heads", Kind::integer, true},
                         {"scale", Kind::real},
                         {"softcap", Kind::real},
                         {"local_window_size", Kind::integer},
                         {"do_rotary", Kind::integer},
                         {"rotary_interleaved", Kind::integer},
                         {"smooth_softmax", Kind::integer},
                         {"causal", Kind::integer},
                         {"qk_norm_epsilon", Kind::real}});
  def.schema.max_outputs = 4;
  def.schema.infer = infer_group_query;
  def.schema.reference = group_query::run_reference;
  return {std::move(def)};
}

}  // namespace lathe::ops
