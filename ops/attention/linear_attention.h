#pragma once
// The recurrence of linear attention: a state [key_size x value_size] for each head that decays, takes in key and value
// of each step, and answers queries.
#include <cstdint>

namespace lathe {

struct LinearAttention {
  int64_t batch = 0, steps = 0, query_heads = 0, heads = 0;  // heads: of keys and values, each with a state
  int64_t key_size = 0, value_size = 0;
  bool decays = false, corrects = false;  // by the rules gated and delta
  bool has_decay_per_key = false;         // otherwise one for each head
  bool has_rate_per_head = false;         // otherwise one for all
  double scale = 1;
};

// Rows of all heads, packed, for each step of each batch entry.
template <class T>
struct LinearAttentionOperands {
  const T *query = nullptr, *key = nullptr, *value = nullptr;
  const T *decay = nullptr, *rate = nullptr;  // null without the rules that need them
  T* state = nullptr;                         // [batch, heads, key_size, value_size]: before, then after all steps
  T* output = nullptr;
  T* scratch = nullptr;  // value_size elements of this call's own
};

// One state through all steps: that of `head` in batch entry `entry`.
void attend_linearly(const LinearAttention& shape, const LinearAttentionOperands<float>& operands, int64_t entry,
                     int64_t head) noexcept;
void attend_linearly(const LinearAttention& shape, const LinearAttentionOperands<double>& operands, int64_t entry,
                     int64_t head) noexcept;

}  // namespace lathe
