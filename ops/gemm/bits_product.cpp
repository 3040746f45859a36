#include "ops/gemm/bits_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

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

}  // namespace

BitsProduct::BitsProduct(const BitsProblem& problem) : problem_(problem) {
  const bool is_wide = has_avx512(problem.isa);
  // The same panels for every m, so that prompts and single tokens share the packed weights.
  constexpr int vecs = 2;
  const int64_t rows = is_wide ? 14 : 4;
  const int lanes = vector_lanes(problem.isa);
  format_ = {int64_t{vecs} * lanes, lanes};
  panels_ = format_.panels(problem.n);
  tiles_ = divide_up(problem.m, rows);
  height_ = static_cast<int>(divide_up(problem.m, tiles_));
  tall_tiles_ = problem.m - tiles_ * (height_ - 1);
  chunk_blocks_ = std::clamp<int64_t>(kChunkBytes / 4 / format_.panel_columns / problem.block, 1, problem.blocks());
  chunks_ = divide_up(problem.blocks(), chunk_blocks_);
  const int64_t last_columns = problem.n - (panels_ - 1) * format_.panel_columns;
  tail_vecs_ = static_cast<int>(divide_up(last_columns, lanes));
  tail_lanes_ = static_cast<int>(last_columns % lanes);
  if (problem.m <= most_bits_rows(problem.isa, vecs)) {
    emit_rows_kernels();
  } else {
    emit_kernels();
  }
}

std::string BitsProduct::key() const {
  if (has_few_rows()) return fmt::format("bits rows {} of {} bits by {}", problem_.m, problem_.bits, problem_.block);
  return fmt::format("gemm {}x{} of {} bits by {}", height_, format_.panel_columns / format_.lanes, problem_.bits,
                     problem_.block);
}

void BitsProduct::emit_kernels() {
  const Isa isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  const int vecs = static_cast<int>(format_.panel_columns / format_.lanes);
  for (int tail = panels_ > 1 ? 0 : 1; tail < 2; ++tail) {
    unpack_[tail] = unpack_bits_kernel({isa, problem_.bits, tail == 1 ? tail_vecs_ : vecs, problem_.has_offsets});
    for (int shorter = 0; shorter < (tall_tiles_ == tiles_ ? 1 : 2); ++shorter) {
      for (int phase = 0; phase < kPhases; ++phase) {
        if ((phase == kOnly) != (chunks_ == 1) || (phase == kMiddle && chunks_ < 3)) continue;
        GemmTilePlan tile;
        tile.isa = isa;
        tile.rows = height_ - shorter;
        tile.vecs = tail == 1 ? tail_vecs_ : vecs;
        tile.accumulate = phase == kMiddle || phase == kLast;
        tile.masked = tail == 1 && tail_lanes_ > 0;
        if (problem_.has_bias && (phase == kOnly || phase == kLast)) tile.epilogue = bias_epilogue();
        heights_[static_cast<size_t>(shorter)].kernels[phase][tail] = gemm_tile(tile);
      }
    }
  }
}

void BitsProduct::emit_rows_kernels() {
  BitsRowsPlan plan;
  plan.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  plan.bits = problem_.bits;
  plan.rows = static_cast<int>(problem_.m);
  plan.block_groups = static_cast<int>(problem_.block / problem_.group());
  plan.has_offsets = problem_.has_offsets;
  for (int tail = panels_ > 1 ? 0 : 1; tail < 2; ++tail) {
    plan.vecs = tail == 1 ? tail_vecs_ : static_cast<int>(format_.panel_columns / format_.lanes);
    rows_[tail] = bits_rows_kernel(plan);
  }
}

// For few rows: A in whole blocks, sums of these, a panel of C.
int64_t BitsProduct::scratch_elements() const {
  if (!has_few_rows()) return chunk_blocks_ * problem_.block * format_.panel_columns;
  return problem_.m * (problem_.blocks() * (problem_.block + 1) + format_.panel_columns);
}

const uint8_t* BitsProduct::codes_at(const BitsOperands& operands, int64_t panel) const {
  return operands.codes + panel * format_.panel_columns * problem_.blocks() * problem_.block * problem_.bits / 8;
}

const float* BitsProduct::scales_at(const BitsOperands& operands, int64_t panel) const {
  return operands.scales + scales_of_block(panel * format_.panel_columns) * problem_.blocks();
}

void BitsProduct::run(const BitsOperands& operands, int thread, int threads) const noexcept {
  const Range mine = split_evenly(panels_, thread, threads);
  if (has_few_rows() && mine.begin < mine.end) prepare_rows(operands);
  for (int64_t panel = mine.begin; panel < mine.end; ++panel)
    has_few_rows() ? run_rows(operands, panel) : run_panel(operands, panel);
}

void BitsProduct::prepare_rows(const BitsOperands& operands) const noexcept {
  constexpr int64_t kTogether = 8;
  const int64_t blocks = problem_.blocks(), padded = blocks * problem_.block;
  float* sums = operands.scratch + problem_.m * padded;
  for (int64_t row = 0; row < problem_.m; ++row) {
    float* to = operands.scratch + row * padded;
    std::copy_n(operands.a + row * problem_.k, problem_.k, to);
    std::fill(to + problem_.k, to + padded, 0.F);
    for (int64_t block = 0; block < blocks; ++block, to += problem_.block) {
      std::array<float, kTogether> parts{};
      for (int64_t i = 0; i < problem_.block; i += kTogether)
        for (size_t j = 0; j < parts.size(); ++j) parts[j] += to[i + static_cast<int64_t>(j)];
      const float sum = std::accumulate(parts.begin(), parts.end(), 0.F);
      *sums++ = problem_.has_offsets ? sum : -kMiddleCode * sum;
    }
  }
}

void BitsProduct::run_rows(const BitsOperands& operands, int64_t panel) const noexcept {
  const int64_t blocks = problem_.blocks(), padded = blocks * problem_.block;
  const int64_t column = panel * format_.panel_columns, width = format_.width_of(panel, problem_.n);
  float* sums = operands.scratch + problem_.m * padded;
  float* c = sums + problem_.m * blocks;
  const BitsRowsArgs args{.codes = codes_at(operands, panel),
                          .scales = scales_at(operands, panel),
                          .a = operands.scratch,
                          .a_sums = sums,
                          .c = c,
                          .blocks = blocks,
                          .a_stride_bytes = padded * 4,
                          .a_sums_stride_bytes = blocks * 4};
  rows_[panel + 1 == panels_ ? 1 : 0].entry()(&args);
  const int64_t valid = std::min(width, problem_.n - column);
  for (int64_t row = 0; row < problem_.m; ++row, c += width) {
    float* to = operands.c + row * problem_.n + column;
    for (int64_t i = 0; i < valid; ++i) to[i] = problem_.has_bias ? c[i] + operands.bias[column + i] : c[i];
  }
}

void BitsProduct::run_panel(const BitsOperands& operands, int64_t panel) const noexcept {
  const int64_t width = format_.width_of(panel, problem_.n);
  const int64_t blocks = problem_.blocks(), block_bytes = problem_.block * width * problem_.bits / 8;
  const uint8_t* codes = codes_at(operands, panel);
  const float* scales = scales_at(operands, panel);
  const auto& unpack = unpack_[panel + 1 == panels_ ? 1 : 0];
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const int64_t first = chunk * chunk_blocks_, last = std::min(blocks, first + chunk_blocks_);
    for (int64_t block = first; block < last; ++block)
      unpack(static_cast<const void*>(codes + block * block_bytes),
             static_cast<const void*>(scales + block * scales_of_block(width)),
             static_cast<void*>(operands.scratch + (block - first) * problem_.block * width),
             problem_.block / problem_.group());
    const int phase = chunks_ == 1 ? kOnly : chunk == 0 ? kFirst : chunk + 1 == chunks_ ? kLast : kMiddle;
    multiply(operands, panel, first * problem_.block, std::min(problem_.k, last * problem_.block), phase);
  }
}

void BitsProduct::multiply(const BitsOperands& operands, int64_t panel, int64_t k_begin, int64_t k_end,
                           int phase) const noexcept {
  const int64_t column = panel * format_.panel_columns;
  GemmTileArgs args{};
  args.b = operands.scratch;
  args.k = k_end - k_begin;
  args.a_stride_bytes = problem_.k * 4;
  args.c_stride_bytes = problem_.n * 4;
  args.tail_lanes = tail_lanes_;
  args.inputs[0] = problem_.has_bias ? operands.bias + column : nullptr;
  int64_t row = 0;
  for (int shorter = 0; shorter < 2; ++shorter) {
    args.tiles = shorter == 0 ? tall_tiles_ : tiles_ - tall_tiles_;
    if (args.tiles == 0) continue;
    args.a = operands.a + row * problem_.k + k_begin;
    args.c = operands.c + row * problem_.n + column;
    heights_[static_cast<size_t>(shorter)].kernels[phase][panel + 1 == panels_ ? 1 : 0].entry()(&args);
    row += args.tiles * (height_ - shorter);
  }
}

}  // namespace lathe
