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

// A shuffle looks up 16 entries by an operand's low four bits, and gives 0 where its top bit is set. The operand less
// 16 is negative when the entry was of the table's first row, and so on: each row has what it differs from the row
// before, and the sum (without carries) of those up to the operand's own is the entry. Operands of either half are
// negative in the other.
[[gnu::target("avx2")]] int64_t look_up_halves(const ByteTable& table, const uint8_t* in, uint8_t* out, int64_t count) {
  constexpr size_t kRow = 16, kRows = 8;  // of a half
  constexpr int kVectors = 4;             // together, for each row comes from memory once
  constexpr int64_t kVector = 32;
  ByteTable steps = table;
  for (size_t i = table.size(); i-- > 0;) {
    if (i % (kRow * kRows) >= kRow) steps[i] ^= table[i - kRow];
  }
  const __m256i row = _mm256_set1_epi8(kRow), top = _mm256_set1_epi8(static_cast<char>(0x80));
  int64_t i = 0;
  for (; i + kVectors * kVector <= count; i += kVectors * kVector) {
    __m256i x[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i + v * kVector));
      sum[v] = _mm256_setzero_si256();
    }
    for (size_t half = 0; half < 2; ++half) {
      __m256i left[kVectors];
      for (int v = 0; v < kVectors; ++v) left[v] = half == 0 ? x[v] : _mm256_xor_si256(x[v], top);
      for (size_t r = 0; r < kRows; ++r) {
        const auto* entry = reinterpret_cast<const __m128i*>(steps.data() + (half * kRows + r) * kRow);
        const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(entry));
        for (int v = 0; v < kVectors; ++v) {
          sum[v] = _mm256_xor_si256(sum[v], _mm256_shuffle_epi8(entries, left[v]));
          left[v] = _mm256_subs_epi8(left[v], row);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + v * kVector), sum[v]);
    }
  }
  return i;
}

}  // namespace

void look_up(const ByteTable& table, const uint8_t* in, uint8_t* out, int64_t count, Isa isa) noexcept {
  static const bool has_permutes = __builtin_cpu_supports("avx512vbmi") != 0;
  int64_t i =
      has_permutes && has_avx512(isa) ? look_up_vectors(table, in, out, count) : look_up_halves(table, in, out, count);
  for (; i < count; ++i) out[i] = table[in[i]];
}

}  // namespace lathe
