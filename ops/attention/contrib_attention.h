#pragma once
// softmax(Q K^T * scale + masks) V in the parts that the attention operators share.
#include <optional>

#include "ops/expansion.h"

namespace lathe {

// Operands are [batch, heads, length, size]. When several heads of the query share one of key and value, all types are
// static.
struct AttentionParts {
  ValueId query, key, value;    // key and value with the past before them
  std::vector<ValueId> biases;  // added to the scores; they broadcast to [batch, heads, queries, keys]
  double scale = 1;
  double softcap = 0;  // > 0: scores become softcap * tanh(score / softcap)
  bool shares_keys = false;
  bool zeroes_empty = false;  // the result of a row whose keys are all masked is 0 instead of NaN
};

struct AttentionResult {
  ValueId output;  // [batch, heads, length, size], or joined [batch, length, heads * size]
  ValueId scores;  // before the softmax, with scale and biases; where heads share keys in an order of its own
};

// [batch, length, heads * size] to [batch, heads, length, size].
ValueId add_split_heads(ExpandContext& context, ValueId x, int64_t heads);
AttentionResult add_attention_of_heads(ExpandContext& context, const AttentionParts& parts);
ValueId add_joined_heads(ExpandContext& context, ValueId heads);
AttentionResult add_attention(ExpandContext& context, const AttentionParts& parts);  // joined

// What excludes keys, as a bias: an integer tensor of the lengths [batch] (or ends and starts [2 * batch]), or of zeros
// and ones [batch, keys], [batch, queries, keys], [batch, 1, longest, longest]. nullopt: extents that this needs are
// not known yet.
struct MaskShape {
  Dim batch, queries, keys, past;
};
std::optional<ValueId> add_mask(ExpandContext& context, ValueId mask, const MaskShape& shape, DType dtype,
                                double filter_value);
// Query i, at position past + i, sees keys up to its position, and no further back than `window` (below 0: all).
// nullopt as above.
std::optional<ValueId> add_causal_mask(ExpandContext& context, const MaskShape& shape, DType dtype,
                                       int64_t window = -1);

// `x`, [., ., ., size], with the first 2 * half elements of each row turned: as pairs by the angles whose cosines and
// sines broadcast to [., ., ., half]. Pairs are neighbours, or half a row apart.
struct Rotation {
  ValueId cos, sin;
  int64_t half, size;
  bool is_interleaved;
};
ValueId add_rotated(ExpandContext& context, ValueId x, const Rotation& rotation);

Dim sum_of(const Dim& a, const Dim& b);
// `past` and what is new, one behind the other along axis 2. `past` may be none.
ValueId add_past(ExpandContext& context, ValueId past, ValueId now);

}  // namespace lathe
