// Products of many rows: a piece of a panel of weights at a time becomes float32 in cache, for all rows of A.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/gemm/unpack_bits.h"
#include "ops/gemm/bits_product.h"
#include "ops/gemm/row_tiles.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Of one piece of B: stays in L1 or near it while all rows of A pass.
constexpr int64_t kChunkBytes = 32 << 10;

GemmEpilogue bias_epilogue() {
  GemmEpilogue epilogue;
  epilogue.expression.inputs = {DType::f32, DType::f32};
  const int product = epilogue.expression.add({.op = ExprOp::input, .a = 0});
  const int bias = epilogue.expression.add({.op = ExprOp::input, .a = 1});
  epilogue.expression.add({.op = ExprOp::add, .a = product, .b = bias});
  epilogue.inputs = {GemmInputAccess::columns};
  return epilogue;
}

class BitsPanelProduct : public BitsProduct {
 public:
  explicit BitsPanelProduct(const BitsProblem& problem) : BitsProduct(problem), format_(problem.format()) {
    const int64_t rows = has_avx512(problem.isa) ? 14 : 4;
    const auto lanes = static_cast<int>(format_.lanes);
    panels_ = problem.panels();
    tiles_ = {problem.m, divide_up(problem.m, rows)};
    chunk_blocks_ = std::clamp<int64_t>(kChunkBytes / 4 / format_.panel_columns / problem.block, 1, problem.blocks());
    chunks_ = divide_up(problem.blocks(), chunk_blocks_);
    const int64_t last_columns = problem.n - (panels_ - 1) * format_.panel_columns;
    tail_vecs_ = static_cast<int>(divide_up(last_columns, lanes));
    tail_lanes_ = static_cast<int>(last_columns % lanes);
    emit_kernels();
  }

  int64_t scratch_elements() const override { return chunk_blocks_ * problem_.block * format_.panel_columns; }

  std::string key() const override {
    return fmt::format("gemm {}x{} of {} bits by {}", tiles_.height, format_.panel_columns / format_.lanes,
                       problem_.bits, problem_.block);
  }

  void run(const BitsOperands& operands, int thread, int threads) const noexcept override {
    const Range mine = split_evenly(panels_, thread, threads);
    for (int64_t panel = mine.begin; panel < mine.end; ++panel) run_panel(operands, panel);
  }

 private:
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile kernels[kPhases][2];  // by phase, is it the last panel
  };

  void emit_kernels();
  void run_panel(const BitsOperands& operands, int64_t panel) const noexcept;
  void multiply(const BitsOperands& operands, int64_t panel, int64_t k_begin, int64_t k_end, int phase) const noexcept;

  const PanelFormat format_;
  int64_t panels_;
  RowTiles tiles_;
  int64_t chunk_blocks_, chunks_;
  int tail_vecs_, tail_lanes_;  // of the last panel; tail_lanes_ 0: whole vectors
  std::array<Height, 2> heights_;
  Kernel<UnpackBitsFn> unpack_[2];  // by: is it the last panel
};

void BitsPanelProduct::emit_kernels() {
  const Isa isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  const int vecs = static_cast<int>(format_.panel_columns / format_.lanes);
  for (int tail = panels_ > 1 ? 0 : 1; tail < 2; ++tail) {
    unpack_[tail] = unpack_bits_kernel({isa, problem_.bits, tail == 1 ? tail_vecs_ : vecs, problem_.has_offsets});
    for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
      for (int phase = 0; phase < kPhases; ++phase) {
        if ((phase == kOnly) != (chunks_ == 1) || (phase == kMiddle && chunks_ < 3)) continue;
        GemmTilePlan tile;
        tile.isa = isa;
        tile.rows = tiles_.height - shorter;
        tile.vecs = tail == 1 ? tail_vecs_ : vecs;
        tile.accumulate = phase == kMiddle || phase == kLast;
        tile.masked = tail == 1 && tail_lanes_ > 0;
        if (problem_.has_bias && (phase == kOnly || phase == kLast)) tile.epilogue = bias_epilogue();
        heights_[static_cast<size_t>(shorter)].kernels[phase][tail] = gemm_tile(tile);
      }
    }
  }
}

void BitsPanelProduct::run_panel(const BitsOperands& operands, int64_t panel) const noexcept {
  const int64_t width = format_.width_of(panel, problem_.n);
  const int64_t blocks = problem_.blocks(), block_bytes = problem_.block * width * problem_.bits / 8;
  const uint8_t* codes = codes_at(operands, panel);
  const float* scales = scales_at(operands, panel);
  const auto& unpack = unpack_[panel + 1 == panels_ ? 1 : 0];
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const int64_t first = chunk * chunk_blocks_, last = std::min(blocks, first + chunk_blocks_);
    for (int64_t block = first; block < last; ++block)
      unpack(static_cast<const void*>(codes + block * block_bytes),
             static_cast<const void*>(scales + block * problem_.scales_of_block(width)),
             static_cast<void*>(operands.scratch + (block - first) * problem_.block * width),
             problem_.block / problem_.group());
    const int phase = chunks_ == 1 ? kOnly : chunk == 0 ? kFirst : chunk + 1 == chunks_ ? kLast : kMiddle;
    multiply(operands, panel, first * problem_.block, std::min(problem_.k, last * problem_.block), phase);
  }
}

void BitsPanelProduct::multiply(const BitsOperands& operands, int64_t panel, int64_t k_begin, int64_t k_end,
                                int phase) const noexcept {
  const int64_t column = panel * format_.panel_columns;
  GemmTileArgs args{};
  args.b = operands.scratch;
  args.k = k_end - k_begin;
  args.a_stride_bytes = problem_.k * 4;
  args.c_stride_bytes = problem_.n * 4;
  args.tail_lanes = tail_lanes_;
  args.inputs[0] = problem_.has_bias ? operands.bias + column : nullptr;
  for (int64_t tile = 0; tile < tiles_.count; tile += args.tiles) {
    const int64_t row = tiles_.row_of(tile);
    args.tiles = tiles_.end_of_height(tile, tiles_.count) - tile;
    args.a = operands.a + row * problem_.k + k_begin;
    args.c = operands.c + row * problem_.n + column;
    heights_[tiles_.is_shorter(tile)].kernels[phase][panel + 1 == panels_ ? 1 : 0].entry()(&args);
  }
}

}  // namespace

std::unique_ptr<const BitsProduct> make_bits_panel_product(const BitsProblem& problem) {
  return std::make_unique<const BitsPanelProduct>(problem);
}

}  // namespace lathe
