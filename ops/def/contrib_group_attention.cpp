// com.microsoft's GroupQueryAttention: attention of decoders, over a cache of keys and values. Each sequence of a batch
// may have its own length, which data say.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "ops/attention/contrib_attention.h"
#include "ops/attention/group_query.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"

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

// Extents as numbers, when all that matter are known. `total`: tokens of the longest sequence, the new ones included.
struct Extents {
  int64_t batch, length, past, total, hidden;
  // One sequence, whose past is just as long as its cache: no data say where it ends.
  bool is_plain() const { return batch == 1 && past + length == total; }
  int64_t capacity() const { return std::max(past, total); }  // of the new cache
};

std::optional<Extents> extents_of(const ExpandContext& context) {
  const TensorType& query = context.input_type(kQuery);
  const Tensor total = context.constant_of(context.input(kTotal));
  if (!query.is_static() || query.rank() != 3 || !total.defined() || total.size() != 1) return std::nullopt;
  for (const Input input : {kKey, kValue}) {
    if (context.has_input(input) && !context.input_type(input).is_static()) return std::nullopt;
  }
  Extents e{query.dims[0].extent, query.dims[1].extent, 0, integers_of_any(total)[0], query.dims[2].extent};
  if (context.has_input(kPastKey)) {
    const TensorType& past = context.input_type(kPastKey);
    if (!past.is_static() || past.rank() != 4) return std::nullopt;
    e.past = past.dims[2].extent;
  }
  constexpr int64_t kMostTokens = 1 << 24;  // that a float32 counts
  const bool is_right = e.length > 0 && e.length <= e.total && e.total <= e.past + e.length && e.total < kMostTokens;
  return is_right && e.batch > 0 ? std::optional(e) : std::nullopt;
}

// Where the new tokens of each sequence stand, [batch, length], and the last key that each of them sees.
struct Places {
  ValueId positions = ValueId::none, limits = ValueId::none;
};

Places places_of(ExpandContext& context, const Extents& e) {
  if (e.is_plain()) return {};
  const ValueId last = context.add("Reshape", {context.input(kLengths), context.longs({-1})});
  Places places;
  Attributes attributes;
  attributes.set("length", e.length);
  attributes.set("total", e.total);
  places.positions = places.limits = context.add_own("SequencePositions", {last}, std::move(attributes));
  if (e.length == 1) return places;
  // Of a prompt that is shorter than the longest one, what stands behind its end.
  const ValueId ends = context.add("Cast", {last}, {{"to", static_cast<int64_t>(DType::i64)}});
  const ValueId column = context.add("Unsqueeze", {ends, context.longs({1})});
  places.limits = context.add("Min", {places.positions, column});
  return places;
}

// What excludes keys, [batch, 1, length, total].
ValueId mask_of(ExpandContext& context, const Places& places, const Extents& e, const Settings& s) {
  const DType dtype = context.input_type(kQuery).dtype;
  Tensor numbers(DType::f32, {e.total});
  for (int64_t i = 0; i < e.total; ++i) store_real(numbers, i, static_cast<double>(i));
  const ValueId keys = context.constant(std::move(numbers));
  const auto column = [&](ValueId x) {
    const ValueId real = context.add("Cast", {x}, {{"to", static_cast<int64_t>(DType::f32)}});
    return context.add("Unsqueeze", {real, context.longs({1, 3})});
  };
  ValueId keeps = context.add("LessOrEqual", {keys, column(places.limits)});
  if (s.window >= 0) {
    const ValueId first =
        context.add("Sub", {column(places.positions), add_scalar(context, DType::f32, static_cast<double>(s.window))});
    keeps = context.add("And", {keeps, context.add("Greater", {keys, first})});
  }
  const double none = -std::numeric_limits<double>::infinity();
  return context.add("Where", {keeps, add_scalar(context, dtype, 0), add_scalar(context, dtype, none)});
}

// The cache with what is new, and as many of its rows as attention reads.
struct Cache {
  ValueId all, read;
};

Cache cache_of(ExpandContext& context, Input past, ValueId now, const Places& places, const Extents& e) {
  if (e.is_plain()) {
    const ValueId all = add_past(context, context.input(past), now);
    return {all, all};
  }
  if (e.past == 0) return {now, now};
  Attributes attributes;
  attributes.set("total", e.capacity());
  const ValueId all =
      context.add_own("CacheAppend", {context.input(past), now, places.positions}, std::move(attributes));
  if (e.capacity() == e.total) return {all, all};
  return {all, context.add("Slice", {all, context.longs({0}), context.longs({e.total}), context.longs({2})})};
}

// Normalized and turned, as the node asks; [batch, heads, length, size].
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

// Rows of a constant table as they lie in it: nothing is left to fold at each length of a growing cache. Undefined: it
// is no such constant.
Tensor rows_of(const Tensor& table, int64_t first, int64_t count) {
  if (!table.defined() || table.size() == 0 || table.rank() != 2 || table.dims()[0] < first + count) return {};
  const int64_t width = table.dims()[1];
  const auto row_bytes = static_cast<int64_t>(table.bytes()) / table.dims()[0];
  const auto* begin = static_cast<const std::byte*>(table.raw()) + first * row_bytes;
  return Tensor::view(table.dtype(), {1, count, 1, width}, begin, table.owner());
}

// The rows of the tables for these tokens, [batch, length, 1, half].
std::optional<Rotation> rotation_of(ExpandContext& context, const Settings& s, const Extents& e, const Places& places) {
  if (!s.rotates) return std::nullopt;
  const TensorType cache = context.input_type(kCos);
  Rotation rotation{.half = cache.dims[1].extent, .size = s.size, .is_interleaved = s.is_interleaved};
  const auto rows = [&](Input table) {
    ValueId taken;
    const ValueId given = context.has_input(kPositions) ? context.input(kPositions) : places.positions;
    const Tensor constant =
        given == ValueId::none ? rows_of(context.constant_of(context.input(table)), e.past, e.length) : Tensor();
    if (constant.defined()) return context.constant(constant);
    if (given != ValueId::none) {
      taken = context.add("Gather", {context.input(table), given}, {{"axis", int64_t{0}}});
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
  const bool has_whole_cache = context.has_input(kPastKey) == context.has_input(kPastValue);
  if (!extents || !has_whole_cache || context.has_input(kSink) || context.has_output(3)) return false;
  const Settings s = settings_of(context, extents->hidden, !context.has_input(kKey));
  if (s.is_smooth || !s.is_causal) return false;
  if (s.heads != s.key_heads && context.has_input(kBias) && !context.input_type(kBias).is_static()) return false;
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
  const Places places = places_of(context, *extents);
  const std::optional<Rotation> rotation = rotation_of(context, s, *extents, places);
  AttentionParts parts{.scale = s.scale, .softcap = s.softcap, .shares_keys = s.heads != s.key_heads};
  parts.query = prepared(context, qkv[0], s.heads, s, kQueryNorm, rotation);
  const Cache keys =
      cache_of(context, kPastKey, prepared(context, qkv[1], s.key_heads, s, kKeyNorm, rotation), places, *extents);
  const Cache values = cache_of(context, kPastValue, add_split_heads(context, qkv[2], s.key_heads), places, *extents);
  parts.key = keys.read;
  parts.value = values.read;
  const bool is_windowed = s.window >= 0 && s.window < extents->total;
  if (!extents->is_plain()) {
    parts.biases.push_back(mask_of(context, places, *extents, s));
    // Behind the end of a short prompt, a window may have no keys.
    parts.zeroes_empty = is_windowed && extents->length > 1;
  } else if (extents->length > 1 || is_windowed) {
    const MaskShape shape{known_dim(1), known_dim(extents->length), known_dim(extents->total),
                          known_dim(extents->past)};
    const DType dtype = context.input_type(kQuery).dtype;
    parts.biases.push_back(*add_causal_mask(context, shape, dtype, s.window));
  }
  if (context.has_input(kBias)) parts.biases.push_back(context.input(kBias));
  context.set_output(0, add_attention(context, parts).output);
  context.set_output(1, keys.all);
  context.set_output(2, values.all);
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
