#pragma once
// Operands of integer products in the form that the kernels read.
#include <cstdint>
#include <optional>
#include <span>

#include "jit/kernels/gemm/gemm_int8.h"
#include "jit/kernels/gemm/row_sums.h"

namespace lathe {

// A matrix of bytes.
struct ByteMatrix {
  const void* data = nullptr;
  bool is_signed = false;
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 1;
};

// Zero points where they lie: none, one for all, or one for each row or column.
struct ByteZeros {
  const void* data = nullptr;
  DType dtype = DType::i32;  // or u8, i8
  int64_t count = 0;
  int32_t at(int64_t i) const;
};

// B in panels as for float32 (ops/gemm/gemm_pack.h), of groups of k that fill 32 bits: bytes of the sign that `dot`
// wants (a byte of the other sign moves by 128), or 16-bit integers less their zero points.
struct Int8PanelFormat {
  Int8Dot dot = Int8Dot::pairs;
  Isa isa = Isa::avx2;
  int64_t panel_columns = 32;

  int64_t padded(int64_t columns) const;  // to whole vectors
  int64_t groups(int64_t rows) const { return groups_of(dot, rows); }
  int64_t bytes(int64_t rows, int64_t columns) const { return groups(rows) * 4 * padded(columns); }
  // What packing adds to each byte of B.
  int shift(bool is_signed) const;
};

// From -most to most: kMostOfSevenBits are what quantizers make weights of for CPUs without VNNI ("reduce range").
bool are_at_most(std::span<const int8_t> weights, int most) noexcept;

// Rows that wait for weights rather than multiply.
constexpr int64_t kFewRowsOfBytes = 12;
// What multiplies bytes of weights that are small, or few rows by weights without -128, on CPUs without VNNI.
// `are_at_most(most)`: of the weights. nullopt: neither.
template <class AreAtMost>
std::optional<Int8Dot> dot_of_small_weights(int64_t rows, AreAtMost are_at_most) {
  if (are_at_most(kMostOfSevenBits)) return Int8Dot::u8s7;
  // Of bytes there are half as many as of 16 bits.
  if (rows <= kFewRowsOfBytes && are_at_most(kMostBesideSigns)) return Int8Dot::s8s8;
  return std::nullopt;
}

// What A's elements move by, so that they have the sign that `dot` wants.
int shift_of_a(Int8Dot dot, bool is_signed);

// `zeros`: of columns; used for 16-bit integers only.
void pack_int8(const ByteMatrix& matrix, const Int8PanelFormat& format, const ByteZeros& zeros, void* out) noexcept;

// The sums over k of packed columns of bytes, by the kernels: products with ones.
class Int8ColumnSums {
 public:
  explicit Int8ColumnSums(const Int8PanelFormat& format);
  // out[padded(columns)] of a packed matrix.
  void operator()(const void* packed, int64_t rows, int64_t columns, int32_t* out) const noexcept;

 private:
  static constexpr int kMostVecs = 16;
  Int8PanelFormat format_;
  GemmInt8Tile tiles_[kMostVecs];  // by vectors - 1
};

// The sums of rows of consecutive bytes, times -factor.
class NegatedRowSums {
 public:
  NegatedRowSums(Isa isa, bool is_signed);
  // out[rows]. `matrix` is of the sign that was told.
  void operator()(const ByteMatrix& matrix, int32_t factor, int32_t* out) const noexcept;

 private:
  Kernel<RowSumsFn> kernel_;  // none: the instruction set has no dot products of bytes
};

// A as the kernels read it: rows of groups_of(). Bytes, moved by shift_of_a(), or 16-bit integers less the zero
// point of the row.
// `first`: number of the first row, for `zeros`.
void copy_int8_rows(const ByteMatrix& matrix, Int8Dot dot, const ByteZeros& zeros, int64_t first, void* out) noexcept;
// Rows of unsigned bytes, of which each x becomes 255 - x, up to whole groups of four.
void invert_int8_rows(const ByteMatrix& matrix, void* out) noexcept;

}  // namespace lathe
