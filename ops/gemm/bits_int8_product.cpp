// Products of integers: a block of a row of A becomes bytes with a scale, which meet the weights' codes as they are.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/gemm/bits_int8_rows.h"
#include "ops/core_cycles.h"
#include "ops/gemm/bits_product.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Rows that are bytes at a time: their blocks stay in L2 while panels pass.
constexpr int64_t kTogether = 96;

class BitsInt8Product : public BitsProduct {
 public:
  explicit BitsInt8Product(const BitsProblem& problem)
      : BitsProduct(problem), rows_(std::min(problem.m, kTogether)), padded_(problem.blocks() * problem.block) {
    BitsInt8RowsPlan plan;
    plan.isa = int8_isa(problem.isa);
    plan.bits = problem.bits;
    plan.block_groups = static_cast<int>(problem.block / problem.group());
    plan.has_offsets = problem.has_offsets;
    plan.codes_to_l2 = fetches_into_l2(core_rates());
    for (plan.rows = 1; plan.rows <= std::min<int64_t>(rows_, tile_rows_); ++plan.rows) {
      for (const int64_t panel : {int64_t{0}, problem.panels() - 1}) {
        plan.vecs = problem.panel_vecs(panel);
        kernels_[plan.rows - 1][panel + 1 == problem.panels() ? 1 : 0] = bits_int8_rows_kernel(plan);
      }
    }
    quantize_ = quantize_blocks_kernel(plan.isa, problem.bits, problem.block, problem.has_offsets);
  }

  // The last block of a row in whole, blocks' scales, a panel of C, bytes.
  int64_t scratch_elements() const override {
    return problem_.block + blocks_floats() + c_floats() + rows_ * padded_ / 4;
  }

  std::string key() const override {
    return fmt::format("gemm bytes of {} rows with {} bits by {}", problem_.m, problem_.bits, problem_.block);
  }

  void run(const BitsOperands& operands, int thread, int threads) const noexcept override {
    const Range mine = split_evenly(problem_.panels(), thread, threads);
    if (mine.begin == mine.end) return;
    for (int64_t first = 0; first < problem_.m; first += rows_) {
      const int64_t rows = std::min(rows_, problem_.m - first);
      for (int64_t row = 0; row < rows; ++row) quantize_row(operands, first + row, row);
      for (int64_t panel = mine.begin; panel < mine.end; ++panel) run_panel(operands, panel, first, rows);
    }
  }

 private:
  int64_t blocks_floats() const { return rows_ * problem_.blocks() * static_cast<int64_t>(sizeof(BlockOfBytes) / 4); }
  int64_t c_floats() const { return tile_rows_ * problem_.format().panel_columns; }
  BlockOfBytes* blocks_of(const BitsOperands& operands, int64_t row) const {
    return reinterpret_cast<BlockOfBytes*>(operands.scratch + problem_.block) + row * problem_.blocks();
  }
  float* c_of(const BitsOperands& operands) const { return operands.scratch + problem_.block + blocks_floats(); }
  int8_t* bytes_of(const BitsOperands& operands, int64_t row) const {
    return reinterpret_cast<int8_t*>(c_of(operands) + c_floats()) + row * padded_;
  }

  void quantize_row(const BitsOperands& operands, int64_t row, int64_t slot) const noexcept {
    const float* from = operands.a + row * problem_.k;
    const int64_t whole = problem_.k / problem_.block, left = problem_.k % problem_.block;
    int8_t* bytes = bytes_of(operands, slot);
    BlockOfBytes* blocks = blocks_of(operands, slot);
    if (whole > 0)
      quantize_(static_cast<const void*>(from), static_cast<void*>(bytes), static_cast<void*>(blocks), whole);
    if (left == 0) return;
    std::copy_n(from + whole * problem_.block, left, operands.scratch);
    std::fill(operands.scratch + left, operands.scratch + problem_.block, 0.F);
    quantize_(static_cast<const void*>(operands.scratch), static_cast<void*>(bytes + whole * problem_.block),
              static_cast<void*>(blocks + whole), int64_t{1});
  }

  void run_panel(const BitsOperands& operands, int64_t panel, int64_t first, int64_t rows) const noexcept {
    const PanelFormat format = problem_.format();
    const int64_t column = panel * format.panel_columns, width = format.width_of(panel, problem_.n);
    // Nothing else is to be done with C.
    const bool is_stored = !problem_.has_bias && column + width <= problem_.n;
    const int64_t tiles = divide_up(rows, tile_rows_);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
      const BitsPanelArgs args{.codes = codes_at(operands, panel),
                               .scales = scales_at(operands, panel),
                               .a = bytes_of(operands, begin),
                               .a_blocks = blocks_of(operands, begin),
                               .c = is_stored ? operands.c + (first + begin) * problem_.n + column : c_of(operands),
                               .blocks = problem_.blocks(),
                               .a_stride_bytes = padded_,
                               .a_blocks_stride_bytes = problem_.blocks() * static_cast<int64_t>(sizeof(BlockOfBytes)),
                               .c_stride_bytes = (is_stored ? problem_.n : width) * 4};
      kernels_[end - begin - 1][panel + 1 == problem_.panels() ? 1 : 0].entry()(&args);
      if (!is_stored) store_rows(operands, panel, first + begin, end - begin, c_of(operands));
    }
  }

  const int64_t rows_, padded_;
  const int tile_rows_ = most_bits_int8_rows(int8_isa(problem_.isa), kMostBitsInt8Vecs);
  Kernel<BitsInt8RowsFn> kernels_[kMostBitsInt8Rows][2];  // by rows, is it the last panel
  Kernel<QuantizeBlocksFn> quantize_;
};

}  // namespace

std::unique_ptr<const BitsProduct> make_bits_int8_product(const BitsProblem& problem) {
  return std::make_unique<const BitsInt8Product>(problem);
}

}  // namespace lathe
