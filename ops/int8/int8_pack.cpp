#include "ops/int8/int8_pack.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/int8/int8_pack_pairs.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// A dot product with ones sums up; whole groups of the longest rows are read from here again and again.
constexpr int64_t kOnes = 4096;  // groups
const uint8_t* ones() {
  alignas(64) static const auto kTable = [] {
    std::array<uint8_t, kOnes * 4> table;
    table.fill(1);
    return table;
  }();
  return kTable.data();
}

// Four rows of 32 columns, byte by byte.
[[gnu::target("avx2")]] void interleave32(const uint8_t* const rows[4], int64_t at, uint8_t flip,
                                          uint8_t* out) noexcept {
  const __m256i flips = _mm256_set1_epi8(static_cast<char>(flip));
  __m256i row[4];
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + at)), flips);
  }
  const __m256i low01 = _mm256_unpacklo_epi8(row[0], row[1]), high01 = _mm256_unpackhi_epi8(row[0], row[1]);
  const __m256i low23 = _mm256_unpacklo_epi8(row[2], row[3]), high23 = _mm256_unpackhi_epi8(row[2], row[3]);
  const __m256i quads[4] = {_mm256_unpacklo_epi16(low01, low23), _mm256_unpackhi_epi16(low01, low23),
                            _mm256_unpacklo_epi16(high01, high23), _mm256_unpackhi_epi16(high01, high23)};
  auto* to = reinterpret_cast<__m128i*>(out);
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(to + i, _mm256_castsi256_si128(quads[i]));
    _mm_storeu_si128(to + 4 + i, _mm256_extracti128_si256(quads[i], 1));
  }
}

// Four rows of 16 columns, byte by byte.
void interleave16(const uint8_t* const rows[4], int64_t at, __m128i flip, uint8_t* out) noexcept {
  __m128i row[4];
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + at)), flip);
  }
  const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]), high01 = _mm_unpackhi_epi8(row[0], row[1]);
  const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]), high23 = _mm_unpackhi_epi8(row[2], row[3]);
  auto* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(low01, low23));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low01, low23));
  _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high01, high23));
  _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high01, high23));
}

// One group of four bytes for each column of a panel.
void pack_quads(const ByteMatrix& matrix, const PanelPart& part, int64_t k, uint8_t flip, uint8_t* out) noexcept {
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  const int64_t depth = std::min<int64_t>(4, matrix.rows - k);
  int64_t column = 0;
  if (matrix.column_stride == 1 && depth == 4) {
    const uint8_t* rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = data + (k + i) * matrix.row_stride + part.column;
    const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
    for (; column + 32 <= part.columns; column += 32) interleave32(rows, column, flip, out + column * 4);
    for (; column + 16 <= part.columns; column += 16) interleave16(rows, column, flips, out + column * 4);
  } else if (matrix.row_stride == 1 && depth == 4) {
    const uint32_t flips = flip * 0x01010101U;
    const uint8_t* from = data + part.column * matrix.column_stride + k;
    for (; column < part.columns; ++column, from += matrix.column_stride) {
      uint32_t group;
      std::memcpy(&group, from, 4);
      group ^= flips;
      std::memcpy(out + column * 4, &group, 4);
    }
  }
  for (; column < part.columns; ++column) {
    const uint8_t* from = data + (part.column + column) * matrix.column_stride + k * matrix.row_stride;
    for (int64_t i = 0; i < 4; ++i) {
      out[column * 4 + i] = i < depth ? static_cast<uint8_t>(from[i * matrix.row_stride] ^ flip) : 0;
    }
  }
  if (part.width > part.columns) {
    std::memset(out + part.columns * 4, 0, static_cast<size_t>((part.width - part.columns) * 4));
  }
}

constexpr int64_t kRowsTogether = 16;
// 16 rows that lie side by side in memory, in blocks of 8 columns: a vector holds those of every fourth column, and
// groups of four columns change places within 128 bits. `width`: columns from group to group. Returns how many columns
// were packed.
[[gnu::target("avx2")]] int64_t pack_blocks_of_8(const uint8_t* from, int64_t column_stride, int64_t columns,
                                                 int64_t width, uint8_t flip, uint8_t* out) noexcept {
  const __m256i flips = _mm256_set1_epi8(static_cast<char>(flip));
  const auto at = [&](int64_t group) { return reinterpret_cast<__m256i*>(out + group * width * 4); };
  int64_t first = 0;
  for (; first + 8 <= columns; first += 8, out += 32) {
    __m256i block[4];
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t* column = from + (first + i) * column_stride;
      const auto* low = reinterpret_cast<const __m128i*>(column);
      const auto* high = reinterpret_cast<const __m128i*>(column + 4 * column_stride);
      const __m256i both =
          _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
      block[i] = _mm256_xor_si256(both, flips);
    }
    const __m256i low_ab = _mm256_unpacklo_epi32(block[0], block[1]);
    const __m256i high_ab = _mm256_unpackhi_epi32(block[0], block[1]);
    const __m256i low_cd = _mm256_unpacklo_epi32(block[2], block[3]);
    const __m256i high_cd = _mm256_unpackhi_epi32(block[2], block[3]);
    _mm256_storeu_si256(at(0), _mm256_unpacklo_epi64(low_ab, low_cd));
    _mm256_storeu_si256(at(1), _mm256_unpackhi_epi64(low_ab, low_cd));
    _mm256_storeu_si256(at(2), _mm256_unpacklo_epi64(high_ab, high_cd));
    _mm256_storeu_si256(at(3), _mm256_unpackhi_epi64(high_ab, high_cd));
  }
  return first;
}

// Sixteen rows that lie side by side in memory, as four groups: the groups of four columns change places.
void pack_four_groups(const ByteMatrix& matrix, const PanelPart& part, int64_t k, uint8_t flip, uint8_t* out) noexcept {
  const auto* data = static_cast<const uint8_t*>(matrix.data) + part.column * matrix.column_stride + k;
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  const auto load = [&](int64_t column) {
    const auto* at = reinterpret_cast<const __m128i*>(data + column * matrix.column_stride);
    return _mm_xor_si128(_mm_loadu_si128(at), flips);
  };
  const auto store = [&](int64_t group, int64_t column, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (group * part.width + column) * 4), value);
  };
  int64_t column = pack_blocks_of_8(data, matrix.column_stride, part.columns, part.width, flip, out);
  for (; column + 4 <= part.columns; column += 4) {
    const __m128i a = load(column), b = load(column + 1), c = load(column + 2), d = load(column + 3);
    const __m128i low_ab = _mm_unpacklo_epi32(a, b), high_ab = _mm_unpackhi_epi32(a, b);
    const __m128i low_cd = _mm_unpacklo_epi32(c, d), high_cd = _mm_unpackhi_epi32(c, d);
    store(0, column, _mm_unpacklo_epi64(low_ab, low_cd));
    store(1, column, _mm_unpackhi_epi64(low_ab, low_cd));
    store(2, column, _mm_unpacklo_epi64(high_ab, high_cd));
    store(3, column, _mm_unpackhi_epi64(high_ab, high_cd));
  }
  for (; column < part.width; ++column) {
    alignas(16) uint8_t groups[kRowsTogether] = {};
    if (column < part.columns) _mm_store_si128(reinterpret_cast<__m128i*>(groups), load(column));
    for (int64_t group = 0; group < 4; ++group)
      std::memcpy(out + (group * part.width + column) * 4, groups + group * 4, 4);
  }
}

void move_row(const uint8_t* __restrict in, int64_t count, uint8_t flip, uint8_t* __restrict out) noexcept {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(in[i] ^ flip);
}

void copy_bytes_of_row(const uint8_t* from, int64_t columns, uint8_t flip, uint8_t* to, int64_t padded) noexcept {
  move_row(from, columns, flip, to);
  std::memset(to + columns, 0, static_cast<size_t>(padded - columns));
}

template <class Byte>
void widen_row(const Byte* from, int64_t columns, int32_t zero, int16_t* out) noexcept {
  const auto subtracted = static_cast<int16_t>(zero);
  for (int64_t i = 0; i < columns; ++i) out[i] = static_cast<int16_t>(from[i] - subtracted);
}

int64_t sum_of_row(const ByteMatrix& matrix, int64_t row) noexcept {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(matrix.is_signed ? 0x80 : 0)), zero = _mm_setzero_si128();
  const auto* from = static_cast<const uint8_t*>(matrix.data) + row * matrix.row_stride;
  __m128i sums = zero;
  int64_t i = 0;
  for (; i + 16 <= matrix.columns; i += 16) {
    const __m128i bytes = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)), flips);
    sums = _mm_add_epi64(sums, _mm_sad_epu8(bytes, zero));
  }
  sums = _mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums));
  int64_t sum = _mm_cvtsi128_si64(sums) - (matrix.is_signed ? 128 * i : 0);
  for (; i < matrix.columns; ++i) sum += matrix.is_signed ? static_cast<int8_t>(from[i]) : from[i];
  return sum;
}

}  // namespace

int32_t ByteZeros::at(int64_t i) const {
  if (count == 0) return 0;
  const int64_t element = count == 1 ? 0 : i;
  if (dtype == DType::u8) return static_cast<const uint8_t*>(data)[element];
  if (dtype == DType::i8) return static_cast<const int8_t*>(data)[element];
  return static_cast<const int32_t*>(data)[element];
}

int64_t Int8PanelFormat::padded(int64_t columns) const {
  const int64_t lanes = vector_lanes(isa);
  return round_up(columns, lanes);
}

int Int8PanelFormat::shift(bool is_signed) const {
  if (dot == Int8Dot::u8s8 && !is_signed) return -128;
  return (dot == Int8Dot::s8u8 || dot == Int8Dot::s8u8_halved) && is_signed ? 128 : 0;
}

[[gnu::target("avx2")]] bool are_at_most(std::span<const int8_t> weights, int bound) noexcept {
  constexpr size_t kTogether = 4096;  // whatever does not fit is mostly found in the first of them
  for (size_t first = 0; first < weights.size(); first += kTogether) {
    const auto part = weights.subspan(first, std::min(kTogether, weights.size() - first));
    int8_t least = 0, most = 0;
    for (const int8_t weight : part) {
      least = std::min(least, weight);
      most = std::max(most, weight);
    }
    if (least < -bound || most > bound) return false;
  }
  return true;
}

int shift_of_a(Int8Dot dot, bool is_signed) {
  if (dot == Int8Dot::u8s7 && is_signed) return 128;
  return (dot == Int8Dot::s8s8 || dot == Int8Dot::s8u8_halved) && !is_signed ? -128 : 0;
}

void pack_int8(const ByteMatrix& matrix, const Int8PanelFormat& format, const ByteZeros& zeros, void* out) noexcept {
  const uint8_t flip = format.shift(matrix.is_signed) != 0 ? 0x80 : 0;
  auto* to = static_cast<uint8_t*>(out);
  for (int64_t column = 0; column < matrix.columns; column += format.panel_columns) {
    const int64_t columns = std::min(format.panel_columns, matrix.columns - column);
    const PanelPart part{column, columns, std::min(format.panel_columns, format.padded(columns))};
    const int64_t groups = format.groups(matrix.rows);
    if (is_wide(format.dot)) {
      pack_pairs(matrix, part, groups, zeros, reinterpret_cast<int16_t*>(to));
      to += groups * part.width * 4;
      continue;
    }
    int64_t k = 0;
    if (matrix.row_stride == 1) {
      for (; k + kRowsTogether <= matrix.rows; k += kRowsTogether, to += 4 * part.width * 4) {
        pack_four_groups(matrix, part, k, flip, to);
      }
    }
    for (; k < 4 * groups; k += 4, to += part.width * 4) pack_quads(matrix, part, k, flip, to);
  }
}

Int8ColumnSums::Int8ColumnSums(const Int8PanelFormat& format) : format_(format) {
  GemmInt8TilePlan plan;
  plan.isa = int8_isa(format.isa);
  plan.dot = format.dot;
  const int most = static_cast<int>(format.panel_columns) / vector_lanes(format.isa);
  for (int vecs = 1; vecs <= std::min(most, kMostVecs); ++vecs) {
    plan.vecs = vecs;
    tiles_[vecs - 1] = gemm_int8_tile(plan);
  }
}

void Int8ColumnSums::operator()(const void* packed, int64_t rows, int64_t columns, int32_t* out) const noexcept {
  alignas(64) static constexpr int32_t kZeros[kMostVecs * 16] = {};
  static constexpr LargeBytes kNoneIsLarge[kOnes] = {};
  const int64_t groups = format_.groups(rows), lanes = vector_lanes(format_.isa);
  const auto* at = static_cast<const char*>(packed);
  for (int64_t column = 0; column < columns; column += format_.panel_columns) {
    const int64_t width = std::min(format_.panel_columns, format_.padded(columns) - column);
    // Ones are fewer than the longest rows: in parts.
    for (int64_t first = 0; first < groups || first == 0; first += kOnes) {
      GemmInt8TileArgs args = {};
      args.a = ones();
      args.b = at + first * width * 4;
      args.c = out + column;
      args.k_groups = std::min(kOnes, groups - first);
      args.tiles = 1;
      args.column_init = first == 0 ? kZeros : out + column;
      args.large = kNoneIsLarge;
      tiles_[width / lanes - 1](&args);
    }
    at += groups * width * 4;
  }
}

NegatedRowSums::NegatedRowSums(Isa isa, bool is_signed) {
  if (has_wide_vnni(isa)) kernel_ = row_sums_kernel(isa, is_signed);
}

void NegatedRowSums::operator()(const ByteMatrix& matrix, int32_t factor, int32_t* out) const noexcept {
  const auto negated = static_cast<int32_t>(0U - static_cast<uint32_t>(factor));
  const int64_t groups = kernel_ && matrix.columns > 0 ? matrix.rows / kRowSumsTogether : 0;
  if (groups > 0) {
    const RowSumsArgs args{matrix.data, out, groups, matrix.columns, matrix.row_stride, negated};
    kernel_(&args);
  }
  for (int64_t row = groups * kRowSumsTogether; row < matrix.rows; ++row) {
    const auto sum = static_cast<uint32_t>(sum_of_row(matrix, row));
    out[row] = static_cast<int32_t>(sum * static_cast<uint32_t>(negated));
  }
}

void copy_int8_rows(const ByteMatrix& matrix, Int8Dot dot, const ByteZeros& zeros, int64_t first, void* out) noexcept {
  const int64_t padded = groups_of(dot, matrix.columns) * group_of(dot);
  const uint8_t flip = shift_of_a(dot, matrix.is_signed) != 0 ? 0x80 : 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const auto* from = static_cast<const uint8_t*>(matrix.data) + row * matrix.row_stride;
    if (is_wide(dot)) {
      int16_t* to = static_cast<int16_t*>(out) + row * padded;
      const int32_t zero = zeros.at(first + row);
      matrix.is_signed ? widen_row(reinterpret_cast<const int8_t*>(from), matrix.columns, zero, to)
                       : widen_row(from, matrix.columns, zero, to);
      std::fill(to + matrix.columns, to + padded, int16_t{0});
    } else {
      copy_bytes_of_row(from, matrix.columns, flip, static_cast<uint8_t*>(out) + row * padded, padded);
    }
  }
}

void invert_int8_rows(const ByteMatrix& matrix, void* out) noexcept {
  const int64_t padded = round_up(matrix.columns, 4);
  for (int64_t row = 0; row < matrix.rows; ++row)
    copy_bytes_of_row(static_cast<const uint8_t*>(matrix.data) + row * matrix.row_stride, matrix.columns, 0xFF,
                      static_cast<uint8_t*>(out) + row * padded, padded);
}

}  // namespace lathe
