#pragma once
#include <emmintrin.h>

namespace lathe {

// Sixteen rows of sixteen bytes each; the i-th becomes column i.
struct ByteTile {
  __m128i rows[16];

  void load_row(int i, const char* from) { rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  void store_row(int i, char* to) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rows[i]); }

  // Each round interleaves the first half of all bytes with the second: after four, rows are columns.
  void transpose() {
    for (int round = 0; round < 4; ++round) {
      __m128i next[16];
      for (int i = 0; i < 8; ++i) {
        next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
        next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
      }
      for (int i = 0; i < 16; ++i) rows[i] = next[i];
    }
  }
};

}  // namespace lathe
