#include "ops/gemm/bf16_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/gemm/gemm_pack.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kLanes = 16;
constexpr int kUnroll = 4;

}  // namespace

Bf16Product::Bf16Product(const Bf16Problem& problem) : problem_(problem) {
  if (problem.k % 2 != 0) throw JitError("bfloat16 products take pairs");
  // Few rows stream B: wide panels. Else the tile that keeps the multipliers busy with the fewest loads.
  const bool is_short = problem.m <= 4;
  vecs_ = static_cast<int>(std::min<int64_t>(is_short ? 6 : 3, divide_up(problem.n, kLanes)));
  const int64_t rows = is_short ? problem.m : vecs_ == 3 ? 8 : 12;
  panels_ = divide_up(problem.n, panel_columns());
  tiles_ = {problem.m, divide_up(problem.m, rows)};
  const int64_t last_columns = problem.n - (panels_ - 1) * panel_columns();
  tail_vecs_ = static_cast<int>(divide_up(last_columns, kLanes));
  tail_lanes_ = static_cast<int>(last_columns % kLanes);
  emit_kernels();
}

int64_t Bf16Product::panel_columns() const { return int64_t{vecs_} * kLanes; }

std::string Bf16Product::packed_key() const {
  return fmt::format("bf16 pairs {} {}x{}", panel_columns(), problem_.k, problem_.n);
}

std::string Bf16Product::key() const { return fmt::format("gemm {}x{} bf16", tiles_.height, vecs_); }

void Bf16Product::emit_kernels() {
  // Each call for a panel prefetches its share of the next one.
  const int64_t lines = int64_t{kUnroll} * vecs_;
  for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
    Height height;
    for (int tail = panels_ > 1 ? 0 : 1; tail < 2; ++tail) {
      GemmTilePlan tile;
      tile.isa = Isa::avx512_bf16;
      tile.bf16 = true;
      tile.rows = tiles_.height - shorter;
      tile.vecs = tail == 1 ? tail_vecs_ : vecs_;
      tile.k_unroll = kUnroll;
      tile.prefetch_lines = static_cast<int>(divide_up(lines, tiles_.count));
      tile.masked = tail == 1 && tail_lanes_ > 0;
      tile.epilogue = problem_.epilogue;
      height.kernels[tail] = gemm_tile(tile);
    }
    heights_.push_back(height);
  }
}

int64_t Bf16Product::packed_elements() const {
  return problem_.k * ((panels_ - 1) * panel_columns() + int64_t{tail_vecs_} * kLanes);
}

void Bf16Product::pack(const uint16_t* b, int64_t row_stride, int64_t column_stride, uint16_t* packed) const noexcept {
  const PanelFormat format{panel_columns(), kLanes};
  pack_pairs({b, problem_.k, problem_.n, row_stride, column_stride}, format, 0, panels_, packed);
}

void Bf16Product::run(const Bf16Operands& operands, int thread, int threads) const noexcept {
  const Range mine = split_evenly(panels_, thread, threads);
  GemmTileArgs args{};
  args.k = problem_.k / 2;
  args.a_stride_bytes = problem_.k * 2;
  args.c_stride_bytes = problem_.n * 2;
  args.tail_lanes = tail_lanes_;
  for (int64_t panel = mine.begin; panel < mine.end; ++panel) {
    const int64_t column = panel * panel_columns();
    const uint16_t* b = operands.b + column * problem_.k;
    args.b = reinterpret_cast<const float*>(b);
    args.prefetch = b + panel_columns() * problem_.k;
    for (size_t i = 0; problem_.epilogue && i < problem_.epilogue->inputs.size(); ++i) {
      const bool by_column = problem_.epilogue->inputs[i] == GemmInputAccess::columns;
      args.inputs[i] = operands.inputs[i] + (by_column ? column : 0);
    }
    for (int64_t tile = 0; tile < tiles_.count; tile += args.tiles) {
      const int64_t row = tiles_.row_of(tile);
      args.tiles = tiles_.end_of_height(tile, tiles_.count) - tile;
      args.a = reinterpret_cast<const float*>(operands.a + row * problem_.k);
      args.c = reinterpret_cast<float*>(operands.c + row * problem_.n + column);
      heights_[tiles_.is_shorter(tile)].kernels[panel + 1 == panels_ ? 1 : 0].entry()(&args);
    }
  }
}

}  // namespace lathe
