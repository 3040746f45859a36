#include "ops/gemm/bits_product.h"

#include <algorithm>

#include "jit/kernels/common/int8_dot.h"

namespace lathe {

const uint8_t* BitsProduct::codes_at(const BitsOperands& operands, int64_t panel) const {
  const int64_t rows = problem_.blocks() * problem_.block;
  return operands.codes + panel * problem_.format().panel_columns * rows * problem_.bits / 8;
}

const float* BitsProduct::scales_at(const BitsOperands& operands, int64_t panel) const {
  return operands.scales + problem_.scales_of_block(panel * problem_.format().panel_columns) * problem_.blocks();
}

void BitsProduct::store_rows(const BitsOperands& operands, int64_t panel, int64_t first_row, int64_t rows,
                             const float* from) const noexcept {
  const PanelFormat format = problem_.format();
  const int64_t column = panel * format.panel_columns, width = format.width_of(panel, problem_.n);
  const int64_t valid = std::min(width, problem_.n - column);
  for (int64_t row = first_row; row < first_row + rows; ++row, from += width) {
    float* to = operands.c + row * problem_.n + column;
    for (int64_t i = 0; i < valid; ++i) to[i] = problem_.has_bias ? from[i] + operands.bias[column + i] : from[i];
  }
}

std::unique_ptr<const BitsProduct> make_bits_product(const BitsProblem& problem) {
  if (problem.rounds_a && has_vnni(problem.isa)) return make_bits_int8_product(problem);
  return has_few_rows(problem) ? make_bits_rows_product(problem) : make_bits_panel_product(problem);
}

}  // namespace lathe
