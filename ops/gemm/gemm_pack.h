#pragma once
// B of a matrix product in the order in which the kernel streams it: panels of `panel_columns` columns, one behind the
// other; inside a panel row k follows row k - 1. The last panel is as wide as its columns need, rounded up to whole
// vectors; what lies past column n is zero.
#include <cstddef>
#include <cstdint>

#include "src/base/divide.h"

namespace lathe {

template <class Element>
struct MatrixViewOf {
  const Element* data = nullptr;
  int64_t rows = 0, columns = 0;              // k, n
  int64_t row_stride = 0, column_stride = 1;  // in elements; one of them is 1
};
using MatrixView = MatrixViewOf<float>;
using MatrixView16 = MatrixViewOf<uint16_t>;  // of bfloat16

inline MatrixView rows_of(const MatrixView& matrix, int64_t begin, int64_t end) {
  MatrixView rows = matrix;
  rows.data += begin * matrix.row_stride;
  rows.rows = end - begin;
  return rows;
}

struct PanelFormat {
  int64_t panel_columns = 32;  // a multiple of lanes
  int64_t lanes = 16;
  int64_t panels(int64_t columns) const { return divide_up(columns, panel_columns); }
  int64_t width_of(int64_t panel, int64_t columns) const;  // stored columns of one panel
  int64_t elements(int64_t rows, int64_t columns) const;
};

// Panels [first, last) to `out`, which is where panel `first` begins. Every value is multiplied by `scale`.
void pack_panels(const MatrixView& matrix, const PanelFormat& format, int64_t first, int64_t last, float scale,
                 float* out) noexcept;

// The same of bfloat16, in pairs of rows: column by column the elements of both, zero below the last row.
void pack_pairs(const MatrixView16& matrix, const PanelFormat& format, int64_t first, int64_t last,
                uint16_t* out) noexcept;

// out[c * out_stride + r] = in[r * in_stride + c].
void transpose(const float* in, int64_t rows, int64_t columns, int64_t in_stride, float* out,
               int64_t out_stride) noexcept;

}  // namespace lathe
