#include "ops/gemm/bfp20_pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "jit/kernels/gemm/bfp20.h"
#include "ops/gemm/largest_elements.h"

namespace lathe {
namespace {

// Scales are this by 2^-31, and normal numbers.
constexpr float kLeastLargest = 0x1p-90F;

// Dense rows of a panel to codes; `codes` has room for as many.
void round_rows(const float* block, int64_t rows, int64_t width, float* scales, int32_t* codes) {
  constexpr auto kLargest = static_cast<float>(Bfp20::kLargestCode);
  std::vector<float> largest(static_cast<size_t>(width)), units(static_cast<size_t>(width));
  find_largest({block, rows, width, width, 1}, largest);
  for (size_t c = 0; c < units.size(); ++c) {
    units[c] = largest[c] > 0 ? kLargest / largest[c] : 0.F;
    scales[c] = std::ldexp(largest[c] / kLargest, -Bfp20::kCodeAt);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < width; ++c)
      codes[row * width + c] = bfp20_code(block[row * width + c] * units[static_cast<size_t>(c)]);
  }
}

}  // namespace

bool fits_bfp20(const MatrixView& b, float scale) { return fits_blocks(b, scale, Bfp20::kBlockRows, kLeastLargest); }

void write_bfp20_group(const int32_t* codes, int64_t stride, int64_t lanes, float* out) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    uint32_t lower = 0, upper[Bfp20::kGroupWords - 1] = {};
    for (int row = 0; row < Bfp20::kGroupRows; ++row) {
      const auto code = static_cast<uint32_t>(codes[row * stride + lane]);
      lower |= (code & Bfp20::kLowerMask) << (row * Bfp20::kLowerBits);
      upper[row / 2] |= (code >> Bfp20::kLowerBits & 0xFFFFu) << (row % 2 * 16);
    }
    std::memcpy(out + lane, &lower, sizeof lower);
    for (int64_t i = 0; i < Bfp20::kGroupWords - 1; ++i)
      std::memcpy(out + (1 + i) * lanes + lane, &upper[i], sizeof lower);
  }
}

void pack_bfp20(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale, float* out) {
  const auto block_elements = static_cast<size_t>(Bfp20::kBlockRows * format.panel_columns);
  std::vector<float> block(block_elements);
  std::vector<int32_t> codes(block_elements);
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t width = format.width_of(panel, b.columns);
    for (int64_t row = 0; row < b.rows; row += Bfp20::kBlockRows) {
      const int64_t end = std::min(b.rows, row + Bfp20::kBlockRows);
      pack_panels(rows_of(b, row, end), format, panel, panel + 1, scale, block.data());
      round_rows(block.data(), end - row, width, out, codes.data());
      out += width;
      for (int64_t group = 0; group < end - row; group += Bfp20::kGroupRows) {
        for (int64_t c = 0; c < width; c += format.lanes, out += Bfp20::kGroupWords * format.lanes)
          write_bfp20_group(codes.data() + group * width + c, width, format.lanes, out);
      }
    }
  }
}

}  // namespace lathe
