#include "ops/gemm/largest_elements.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lathe {

void find_largest(const MatrixView& block, std::vector<float>& largest) {
  std::fill(largest.begin(), largest.end(), 0.F);
  const auto larger = [](float a, float b) { return a > b || std::isnan(a) ? a : b; };
  if (block.column_stride == 1) {
    for (int64_t row = 0; row < block.rows; ++row) {
      const float* in = block.data + row * block.row_stride;
      for (size_t c = 0; c < largest.size(); ++c) largest[c] = larger(largest[c], std::abs(in[c]));
    }
    return;
  }
  for (size_t c = 0; c < largest.size(); ++c) {
    const float* in = block.data + static_cast<int64_t>(c) * block.column_stride;
    for (int64_t row = 0; row < block.rows; ++row) largest[c] = larger(largest[c], std::abs(in[row]));
  }
}

bool fits_blocks(const MatrixView& b, float scale, int64_t block_rows, float least) {
  std::vector<float> largest(static_cast<size_t>(b.columns));
  for (int64_t row = 0; row < b.rows; row += block_rows) {
    find_largest(rows_of(b, row, std::min(b.rows, row + block_rows)), largest);
    for (const float each : largest) {
      const float scaled = std::abs(each * scale);
      if (!(scaled == 0 || (scaled >= least && scaled <= std::numeric_limits<float>::max()))) return false;
    }
  }
  return true;
}

}  // namespace lathe
