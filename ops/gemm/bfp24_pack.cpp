#include "ops/gemm/bfp24_pack.h"

#include <bit>
#include <cstring>
#include <vector>

#include "jit/kernels/gemm/bfp24.h"
#include "ops/gemm/largest_elements.h"

namespace lathe {
namespace {

// Scales are this by 2^-31, and normal numbers. What is smaller may be zero.
constexpr float kLeastOfColumn = 0x1p-90F, kLeastLargest = 0x1p-60F;
constexpr int kUnit = 1 << Bfp24::kByte;
constexpr int32_t kByteMask = kUnit - 1;

// The nearest integer, of less than 32 bits.
int32_t rounded(double number) {
  constexpr double kIntegers = 0x1.8p52;  // numbers of this size have no digits behind the point
  return static_cast<int32_t>(std::bit_cast<int64_t>(number + kIntegers));
}

// One group of rows of a dense panel, of so many columns. `units`: the reciprocal of each column's unit.
void write_group(const float* rows, int64_t width, int64_t columns, const double* units, float* out) {
  constexpr auto kLast = Bfp24::kGroupRows - 1;
  for (int64_t c = 0; c < columns; ++c) {
    const int32_t last = rounded(double(rows[kLast * width + c]) * units[c]);
    int32_t words[Bfp24::kGroupWords];
    for (int i = 0; i < Bfp24::kGroupWords; ++i) {
      const int32_t low = last >> (i * Bfp24::kByte) & kByteMask;
      const double code = double(rows[i * width + c]) * units[c] - low * (1.0 / kUnit);
      words[i] = rounded(code) * kUnit + low;
      std::memcpy(out + i * columns + c, &words[i], sizeof words[i]);
    }
  }
}

void pack_panel(const float* panel, int64_t rows, int64_t width, int64_t lanes, float* out) {
  std::vector<float> largest(static_cast<size_t>(width));
  find_largest({panel, rows, width, width, 1}, largest);
  std::vector<double> units(largest.size());
  float* scales = out + Bfp24::row_words(rows) * width;
  for (size_t c = 0; c < largest.size(); ++c) {
    const bool is_zero = largest[c] < kLeastOfColumn;
    units[c] = is_zero ? 0 : Bfp24::kLargestCode / double(largest[c]);
    scales[c] = is_zero ? 0 : static_cast<float>(double(largest[c]) / (double(Bfp24::kLargestCode) * kUnit));
  }
  for (int64_t row = 0; row < rows; row += Bfp24::kGroupRows) {
    for (int64_t c = 0; c < width; c += lanes, out += Bfp24::kGroupWords * lanes)
      write_group(panel + row * width + c, width, lanes, units.data() + c, out);
  }
}

}  // namespace

bool fits_bfp24(const MatrixView& b, float scale) { return fits_blocks(b, scale, b.rows, kLeastLargest); }

void pack_bfp24(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale, float* out) {
  std::vector<float> dense(static_cast<size_t>(b.rows * format.panel_columns));
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t width = format.width_of(panel, b.columns);
    pack_panels(b, format, panel, panel + 1, scale, dense.data());
    pack_panel(dense.data(), b.rows, width, format.lanes, out);
    out += Bfp24::words(b.rows) * width;
  }
}

}  // namespace lathe
