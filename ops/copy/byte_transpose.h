#pragma once
#include <emmintrin.h>

namespace lathe {

// Rows of sixteen bytes each: 8 or 16 of them.
template <int kRows>
struct ByteRows {
  __m128i rows[kRows];

  void load_row(int i, const char* from) { rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  void store_row(int i, char* to) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rows[i]); }

  // Each round interleaves the first half of all bytes with the second: the highest bit of a byte's place becomes the
  // lowest. After as many rounds as a row's number has bits, places within rows come first, and rows' numbers behind.
  void interleave(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      __m128i next[kRows];
      for (int i = 0; i < kRows / 2; ++i) {
        next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + kRows / 2]);
        next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + kRows / 2]);
      }
      for (int i = 0; i < kRows; ++i) rows[i] = next[i];
    }
  }
};

// Its i-th row becomes column i.
struct ByteTile : ByteRows<16> {
  void transpose() { interleave(4); }
};

}  // namespace lathe
