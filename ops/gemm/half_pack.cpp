#include "ops/gemm/half_pack.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "src/base/half.h"
#include "src/base/half_rows.h"

namespace lathe {
namespace {

// A line of B: of a large model's weights one by one would take most of its load.
[[gnu::target("avx2,f16c")]] bool are_f16(const float* from, int64_t count, float scale) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(scale));
    const __m256 halves = _mm256_cvtph_ps(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    if (_mm256_movemask_ps(_mm256_cmp_ps(values, halves, _CMP_EQ_OQ)) != 0xFF) return false;
  }
  for (; i < count; ++i)
    if (half_to_float(float_to_half(from[i] * scale)) != from[i] * scale) return false;
  return true;
}

bool are_bf16(const float* from, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = from[i] * scale;
    if ((std::bit_cast<uint32_t>(value) & 0xFFFFu) != 0 || value != value) return false;
  }
  return true;
}

}  // namespace

bool fits_halves(const MatrixView& b, float scale, WeightFormat format) {
  const bool is_turned = b.column_stride != 1;
  const int64_t lines = is_turned ? b.columns : b.rows, count = is_turned ? b.rows : b.columns;
  const int64_t stride = is_turned ? b.column_stride : b.row_stride;
  const auto are_halves = format == WeightFormat::f16 ? are_f16 : are_bf16;
  // Most matrices end this with one of their first elements.
  for (int64_t line = 0; line < lines; ++line)
    if (!are_halves(b.data + line * stride, count, scale)) return false;
  return true;
}

void pack_halves(const MatrixView& b, const PanelFormat& format, int64_t first, int64_t last, float scale,
                 WeightFormat halves, float* out) {
  constexpr int64_t kRowsAtOnce = 64;
  std::vector<float> block(static_cast<size_t>(kRowsAtOnce * format.panel_columns));
  const auto narrow = halves == WeightFormat::f16 ? floats_to_halves : floats_to_bfloats;
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t width = format.width_of(panel, b.columns);
    for (int64_t row = 0; row < b.rows; row += kRowsAtOnce) {
      const MatrixView rows = rows_of(b, row, std::min(b.rows, row + kRowsAtOnce));
      pack_panels(rows, format, panel, panel + 1, scale, block.data());
      const int64_t count = rows.rows * width;
      narrow(block.data(), count, to);
      to += count;
    }
    if (b.rows % 2 == 1) to = std::fill_n(to, width, uint16_t{0});
  }
}

}  // namespace lathe
