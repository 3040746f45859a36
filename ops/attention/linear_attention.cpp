#include "ops/attention/linear_attention.h"

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

// One step's rows of this head.
template <class T>
struct Moment {
  const T *key, *value, *decay;
  T rate;
};

// The state decays, and what it holds under this key comes out in `held`.
template <class T>
[[gnu::always_inline]] inline void fade(const LinearAttention& shape, const Moment<T>& now, T* state, T* held) {
  std::fill(held, held + shape.value_size, T{0});
  for (int64_t d = 0; d < shape.key_size; ++d) {
    T* row = state + d * shape.value_size;
    const T factor = shape.decays ? std::exp(now.decay[shape.has_decay_per_key ? d : 0]) : T{1};
    const T key = now.key[d];
    for (int64_t v = 0; v < shape.value_size; ++v) {
      row[v] *= factor;
      held[v] += row[v] * key;
    }
  }
}

// `added`, times the key, goes into the state.
template <class T>
[[gnu::always_inline]] inline void write(const LinearAttention& shape, const T* key, const T* added, T* state) {
  for (int64_t d = 0; d < shape.key_size; ++d) {
    T* row = state + d * shape.value_size;
    for (int64_t v = 0; v < shape.value_size; ++v) row[v] += key[d] * added[v];
  }
}

template <class T>
[[gnu::always_inline]] inline void read(const LinearAttention& shape, const T* query, const T* state, T* output) {
  std::fill(output, output + shape.value_size, T{0});
  for (int64_t d = 0; d < shape.key_size; ++d) {
    const T* row = state + d * shape.value_size;
    const T factor = query[d] * static_cast<T>(shape.scale);
    for (int64_t v = 0; v < shape.value_size; ++v) output[v] += factor * row[v];
  }
}

template <class T>
[[gnu::always_inline]] inline void attend(const LinearAttention& shape, const LinearAttentionOperands<T>& operands,
                                          int64_t entry, int64_t head) {
  const int64_t group = shape.query_heads / shape.heads;
  T* state = operands.state + (entry * shape.heads + head) * shape.key_size * shape.value_size;
  for (int64_t step = 0; step < shape.steps; ++step) {
    const int64_t row = entry * shape.steps + step, at = row * shape.heads + head;
    Moment<T> now{operands.key + at * shape.key_size, operands.value + at * shape.value_size, nullptr, T{1}};
    if (shape.decays) now.decay = operands.decay + at * (shape.has_decay_per_key ? shape.key_size : 1);
    if (shape.corrects) now.rate = operands.rate[shape.has_rate_per_head ? at : row];
    if (shape.decays || shape.corrects) fade(shape, now, state, operands.scratch);
    for (int64_t v = 0; v < shape.value_size; ++v) {
      const T known = shape.corrects ? operands.scratch[v] : T{0};
      operands.scratch[v] = now.rate * (now.value[v] - known);
    }
    write(shape, now.key, operands.scratch, state);
    for (int64_t q = head * group; q < (head + 1) * group; ++q) {
      const int64_t query = row * shape.query_heads + q;
      read(shape, operands.query + query * shape.key_size, state, operands.output + query * shape.value_size);
    }
  }
}

}  // namespace

// Every machine that Lathe runs on has AVX2: the loops over values are vectorized for it.
[[gnu::target("avx2,fma")]] void attend_linearly(const LinearAttention& shape,
                                                 const LinearAttentionOperands<float>& operands, int64_t entry,
                                                 int64_t head) noexcept {
  attend(shape, operands, entry, head);
}

void attend_linearly(const LinearAttention& shape, const LinearAttentionOperands<double>& operands, int64_t entry,
                     int64_t head) noexcept {
  attend(shape, operands, entry, head);
}

}  // namespace lathe
