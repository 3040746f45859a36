#include "ops/int8/int8_pack_pairs.h"

#include <immintrin.h>

namespace lathe {
namespace {

constexpr int64_t kRowsTogether = 16, kColumnsTogether = 8;

int32_t widened(const ByteMatrix& matrix, int64_t row, int64_t column) {
  const uint8_t byte =
      static_cast<const uint8_t*>(matrix.data)[row * matrix.row_stride + column * matrix.column_stride];
  return matrix.is_signed ? static_cast<int8_t>(byte) : byte;
}

// One pair for each column from `first` on.
void pack_pair(const ByteMatrix& matrix, const PanelPart& part, int64_t first, int64_t row, const ByteZeros& zeros,
               int16_t* out) noexcept {
  for (int64_t column = first; column < part.width; ++column) {
    for (int64_t i = 0; i < 2; ++i) {
      const bool is_inside = column < part.columns && row + i < matrix.rows;
      const int64_t at = part.column + column;
      out[column * 2 + i] = is_inside ? static_cast<int16_t>(widened(matrix, row + i, at) - zeros.at(at)) : int16_t{0};
    }
  }
}

// 16 bytes as 16-bit integers, less a zero point.
[[gnu::target("avx2")]] __m256i widen(const uint8_t* from, bool is_signed, __m256i zero) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_sub_epi16(is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes), zero);
}

// Two rows whose columns lie side by side. The compiler interleaves.
template <class Byte>
[[gnu::target("avx2")]] void interleave_rows(const Byte* __restrict first, const Byte* __restrict second,
                                             int64_t columns, int16_t zero, int16_t* __restrict out) noexcept {
  for (int64_t i = 0; i < columns; ++i) {
    out[2 * i] = static_cast<int16_t>(first[i] - zero);
    out[2 * i + 1] = static_cast<int16_t>(second[i] - zero);
  }
}

// Afterwards rows[i] has lane i of all.
[[gnu::target("avx2")]] void transpose(__m256i (&rows)[kColumnsTogether]) noexcept {
  __m256i twos[kColumnsTogether], fours[kColumnsTogether];
  for (size_t i = 0; i < 8; i += 2) {
    twos[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    twos[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (size_t i = 0; i < 8; i += 4) {
    fours[i] = _mm256_unpacklo_epi64(twos[i], twos[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi64(twos[i], twos[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi64(twos[i + 1], twos[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi64(twos[i + 1], twos[i + 3]);
  }
  for (size_t i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

// kRowsTogether rows that lie side by side. Returns how many columns were packed.
[[gnu::target("avx2")]] int64_t turn_rows(const ByteMatrix& matrix, const PanelPart& part, int64_t row,
                                          int16_t zero_point, int16_t* out) noexcept {
  const auto* from = static_cast<const uint8_t*>(matrix.data) + part.column * matrix.column_stride + row;
  const __m256i zero = _mm256_set1_epi16(zero_point);
  int64_t column = 0;
  for (; column + kColumnsTogether <= part.columns; column += kColumnsTogether) {
    __m256i lanes[kColumnsTogether];
    for (__m256i& lane : lanes) {
      lane = widen(from, matrix.is_signed, zero);
      from += matrix.column_stride;
    }
    transpose(lanes);
    for (int64_t pair = 0; pair < kRowsTogether / 2; ++pair) {
      int16_t* to = out + (pair * part.width + column) * 2;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), lanes[pair]);
    }
  }
  return column;
}

}  // namespace

void pack_pairs(const ByteMatrix& matrix, const PanelPart& part, int64_t pairs, const ByteZeros& zeros,
                int16_t* out) noexcept {
  const bool has_one_zero = zeros.count <= 1;
  const auto zero = static_cast<int16_t>(has_one_zero ? zeros.at(0) : 0);
  int64_t row = 0;
  if (has_one_zero && matrix.row_stride == 1) {
    for (; row + kRowsTogether <= matrix.rows; row += kRowsTogether) {
      const int64_t done = turn_rows(matrix, part, row, zero, out);
      for (int64_t i = 0; i < kRowsTogether; i += 2, out += part.width * 2) {
        pack_pair(matrix, part, done, row + i, zeros, out);
      }
    }
  }
  for (; row < 2 * pairs; row += 2, out += part.width * 2) {
    const bool is_plain = has_one_zero && matrix.column_stride == 1 && row + 1 < matrix.rows;
    if (is_plain) {
      const auto* first = static_cast<const uint8_t*>(matrix.data) + row * matrix.row_stride + part.column;
      const uint8_t* second = first + matrix.row_stride;
      matrix.is_signed ? interleave_rows(reinterpret_cast<const int8_t*>(first),
                                         reinterpret_cast<const int8_t*>(second), part.columns, zero, out)
                       : interleave_rows(first, second, part.columns, zero, out);
    }
    pack_pair(matrix, part, is_plain ? part.columns : 0, row, zeros, out);
  }
}

}  // namespace lathe
