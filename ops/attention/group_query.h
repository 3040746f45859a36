#pragma once
// What expansion and reference of GroupQueryAttention share: the inputs by name, and the attributes as numbers.
#include <cmath>

#include "ops/expansion.h"
#include "ops/op_def.h"

namespace lathe::group_query {

enum Input {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm
};

struct Settings {
  int64_t heads, key_heads, size;
  double scale, softcap, norm_epsilon;
  int64_t window;
  bool rotates, is_interleaved, is_causal, is_smooth;
};

// `hidden`: columns of the query input. `is_packed`: it holds key and value too.
template <class Context>
Settings settings_of(const Context& context, int64_t hidden, bool is_packed) {
  const Attributes& attributes = context.node.attributes;
  Settings s{};
  s.heads = attributes.get_int("num_heads", 0);
  s.key_heads = attributes.get_int("kv_num_heads", 0);
  const int64_t shared = is_packed ? s.heads + 2 * s.key_heads : s.heads;
  constexpr int64_t kMostHeads = 1 << 20;
  if (s.heads < 1 || s.heads > kMostHeads || s.key_heads < 1 || s.key_heads > s.heads || s.heads % s.key_heads != 0 ||
      hidden % shared != 0) {
    context.fail("has " + std::to_string(s.heads) + " heads, " + std::to_string(s.key_heads) + " of keys, and " +
                 std::to_string(hidden) + " columns");
  }
  s.size = hidden / shared;
  const auto scale = static_cast<double>(attributes.get_float("scale", 0));
  s.scale = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(s.size));
  s.softcap = static_cast<double>(attributes.get_float("softcap", 0));
  s.norm_epsilon = static_cast<double>(attributes.get_float("qk_norm_epsilon", 1e-6F));
  s.window = attributes.get_int("local_window_size", -1);
  s.rotates = attributes.get_int("do_rotary", 0) != 0;
  s.is_interleaved = attributes.get_int("rotary_interleaved", 0) != 0;
  s.is_causal = attributes.get_int("causal", 1) != 0;
  s.is_smooth = attributes.get_int("smooth_softmax", 0) > 0;
  return s;
}

// Any batch, each sequence with a length of its own.
void run_reference(ReferenceContext& context);

}  // namespace lathe::group_query
