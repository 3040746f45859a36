#include "ops/gemm/gemm_pack.h"
#include "src/base/divide.h"

#include <algorithm>
#include <cstring>

namespace lathe {
namespace {

// 16 x 16 floats: both sides of a block stay in L1 while it is turned.
constexpr int64_t kBlock = 16;

void turn_block(const float* __restrict in, int64_t rows, int64_t columns, int64_t in_stride, float scale,
                float* __restrict out, int64_t out_stride) noexcept {
  if (rows == kBlock && columns == kBlock) {  // constant bounds let the compiler vectorize
    for (int64_t r = 0; r < kBlock; ++r) {
      for (int64_t c = 0; c < kBlock; ++c) out[c * out_stride + r] = in[r * in_stride + c] * scale;
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * out_stride + r] = in[r * in_stride + c] * scale;
  }
}

// Constant sizes let the compiler copy without a call.
template <int64_t columns>
void copy_whole_rows(const float* in, int64_t rows, int64_t in_stride, float* out) noexcept {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + row * columns, in + row * in_stride, static_cast<size_t>(columns) * sizeof(float));
  }
}

void copy_rows(const float* in, const MatrixView& matrix, int64_t columns, int64_t width, float scale,
               float* out) noexcept {
  if (scale == 1 && columns == width) {
    if (width == 16) return copy_whole_rows<16>(in, matrix.rows, matrix.row_stride, out);
    if (width == 32) return copy_whole_rows<32>(in, matrix.rows, matrix.row_stride, out);
    if (width == 48) return copy_whole_rows<48>(in, matrix.rows, matrix.row_stride, out);
  }
  for (int64_t k = 0; k < matrix.rows; ++k, in += matrix.row_stride, out += width) {
    if (scale == 1) {
      std::memcpy(out, in, static_cast<size_t>(columns) * sizeof(float));
    } else {
      for (int64_t c = 0; c < columns; ++c) out[c] = in[c] * scale;
    }
    std::fill(out + columns, out + width, 0.0f);
  }
}

void turn_rows(const float* in, const MatrixView& matrix, int64_t columns, int64_t width, float scale,
               float* out) noexcept {
  for (int64_t k = 0; k < matrix.rows; k += kBlock) {
    const int64_t steps = std::min(kBlock, matrix.rows - k);
    for (int64_t c = 0; c < columns; c += kBlock) {
      turn_block(in + c * matrix.column_stride + k, std::min(kBlock, columns - c), steps, matrix.column_stride, scale,
                 out + k * width + c, width);
    }
    for (int64_t step = k; step < k + steps; ++step) {
      std::fill(out + step * width + columns, out + (step + 1) * width, 0.0f);
    }
  }
}

}  // namespace

int64_t PanelFormat::width_of(int64_t panel, int64_t columns) const {
  const int64_t left = columns - panel * panel_columns;
  return std::min(panel_columns, round_up(left, lanes));
}

int64_t PanelFormat::elements(int64_t rows, int64_t columns) const { return rows * (round_up(columns, lanes)); }

void pack_panels(const MatrixView& matrix, const PanelFormat& format, int64_t first, int64_t last, float scale,
                 float* out) noexcept {
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t column = panel * format.panel_columns;
    const int64_t columns = std::min(format.panel_columns, matrix.columns - column);
    const int64_t width = format.width_of(panel, matrix.columns);
    if (matrix.column_stride == 1) {
      copy_rows(matrix.data + column, matrix, columns, width, scale, out);
    } else {
      turn_rows(matrix.data + column * matrix.column_stride, matrix, columns, width, scale, out);
    }
    out += matrix.rows * width;
  }
}

void pack_pairs(const MatrixView16& matrix, const PanelFormat& format, int64_t first, int64_t last,
                uint16_t* out) noexcept {
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t column = panel * format.panel_columns, width = format.width_of(panel, matrix.columns);
    const int64_t valid = std::min(width, matrix.columns - column);
    for (int64_t row = 0; row < matrix.rows; row += 2) {
      const uint16_t* from = matrix.data + row * matrix.row_stride + column * matrix.column_stride;
      const bool is_pair = row + 1 < matrix.rows;
      if (is_pair && matrix.column_stride == 1) {  // a loop of its own: the compiler interleaves
        const uint16_t* below = from + matrix.row_stride;
        for (int64_t i = 0; i < valid; ++i) {
          out[2 * i] = from[i];
          out[2 * i + 1] = below[i];
        }
      } else {
        for (int64_t i = 0; i < valid; ++i) {
          out[2 * i] = from[i * matrix.column_stride];
          out[2 * i + 1] = is_pair ? from[matrix.row_stride + i * matrix.column_stride] : uint16_t{0};
        }
      }
      std::fill(out + 2 * valid, out + 2 * width, uint16_t{0});
      out += 2 * width;
    }
  }
}

void transpose(const float* in, int64_t rows, int64_t columns, int64_t in_stride, float* out,
               int64_t out_stride) noexcept {
  for (int64_t r = 0; r < rows; r += kBlock) {
    for (int64_t c = 0; c < columns; c += kBlock) {
      turn_block(in + r * in_stride + c, std::min(kBlock, rows - r), std::min(kBlock, columns - c), in_stride, 1,
                 out + c * out_stride + r, out_stride);
    }
  }
}

}  // namespace lathe
