#include "ops/pointwise/byte_table.h"

#include <immintrin.h>

namespace lathe {
namespace {

// Two tables of 128 bytes each; the operand's top bit chooses between them.
[[gnu::target("avx512f,avx512bw,avx512vbmi")]] int64_t look_up_vectors(const ByteTable& table, const uint8_t* in,
                                                                       uint8_t* out, int64_t count) {
  constexpr int64_t kVector = 64;
  const __m512i first = _mm512_loadu_si512(table.data()), second = _mm512_loadu_si512(table.data() + kVector),
                third = _mm512_loadu_si512(table.data() + 2 * kVector),
                fourth = _mm512_loadu_si512(table.data() + 3 * kVector);
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    const __m512i x = _mm512_loadu_si512(in + i);
    const __m512i low = _mm512_permutex2var_epi8(first, x, second), high = _mm512_permutex2var_epi8(third, x, fourth);
    _mm512_storeu_si512(out + i, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(x), high));
  }
  return i;
}

}  // namespace

void look_up(const ByteTable& table, const uint8_t* in, uint8_t* out, int64_t count, Isa isa) noexcept {
  static const bool has_permutes = __builtin_cpu_supports("avx512vbmi") != 0;
  int64_t i = has_permutes && has_avx512(isa) ? look_up_vectors(table, in, out, count) : 0;
  for (; i < count; ++i) out[i] = table[in[i]];
}

}  // namespace lathe
