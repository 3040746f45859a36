#include "ops/int8/int8_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/int8/int8_lower.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kGroupBytes = 4;
// How far ahead a panel that is used by one tile only prefetches itself.
constexpr int64_t kNearPrefetchBytes = 16 << 10;

}  // namespace

Int8Product::Int8Product(const Int8Problem& problem, const GemmPlan& plan, std::vector<Int8Offsets> offsets)
    : problem_(problem),
      plan_(plan),
      offsets_(std::move(offsets)),
      lanes_(vector_lanes(problem.isa)),
      groups_(problem.groups()) {
  if (!is_valid(plan, problem)) throw JitError("not possible here: " + int8_plan_text(plan, problem.dot));
  if (offsets_.empty()) offsets_.resize(1);
  epilogue_ = problem.epilogue;
  if (epilogue_) {
    store_ = split_requantization(epilogue_->expression, problem.isa, problem.may_change, changes_);
  }
  const int64_t panel_columns = int64_t{plan.vecs} * lanes_;
  panels_ = divide_up(problem.n, panel_columns);
  tiles_ = row_tiles(plan, problem.m, problem.threads);
  tiles_in_block_ = std::max<int64_t>(1, plan.row_block / tiles_.height);
  const int64_t last_columns = problem.n - (panels_ - 1) * panel_columns;
  tail_vecs_ = static_cast<int>(divide_up(last_columns, lanes_));
  tail_lanes_ = static_cast<int>(last_columns % lanes_);
  for (size_t i = 1; i < offsets_.size(); ++i) {
    const Int8Offsets &from = offsets_[i - 1], &to = offsets_[i];
    steps_.push_back({to.a - from.a, to.b - from.b, to.c - from.c, (to.columns - from.columns) * kGroupBytes,
                      (to.rows - from.rows) * kGroupBytes});
  }
  row_groups_ = groups_beside_rows();
  try {
    make_kernels();
  } catch (const JitError&) {
    if (row_groups_ == 0) throw;
    row_groups_ = 0;  // the epilogue takes too many registers
    make_kernels();
  }
}

// The first products of a tile hide what becomes of the sums of the tile before.
int Int8Product::groups_beside_rows() const {
  constexpr int64_t kMostGroups = 8;
  const int64_t groups = std::min(kMostGroups, problem_.groups() / tiles_.height);
  if (!has_avx512(problem_.isa) || std::min(tiles_in_block_, tiles_.count) < 2 || groups == 0) return 0;
  GemmInt8TilePlan tile = tile_plan(tiles_.height, false, true);
  tile.row_groups = static_cast<int>(groups);
  return tile.is_valid() ? tile.row_groups : 0;
}

// A panel is used by so many tile calls: each prefetches its share of the next one.
void Int8Product::plan_prefetches() {
  // What few rows stream the CPU fetches ahead by itself, and is only held up by being asked as well: 4 rows by
  // 4096x4096 from memory 0.56 ms against 0.97, a row by 1024x1024 12 us against 15.
  constexpr int64_t kFewRows = 4;
  if (problem_.m <= kFewRows && problem_.batches == 1) return;
  if (problem_.is_b_near) {
    prefetch_lines_ = 1;
    return;
  }
  const int64_t panel_columns = int64_t{plan_.vecs} * lanes_;
  // Tiles that may go from product to product do so first.
  const bool is_plain = !epilogue_;
  const int64_t sharing = std::min(tiles_in_block_, is_plain ? tiles_.tall : tiles_.count);
  const int64_t lines = std::max<int64_t>(1, plan_.k_unroll * panel_columns * kGroupBytes / kLineBytes);
  // Calls that end early interrupt what overlaps: all tiles of such prefetch.
  prefetch_lines_ = static_cast<int>(row_groups_ > 0 ? divide_up(lines, sharing) : lines_of_each(lines, sharing));
  const int64_t tile_bytes = std::max<int64_t>(1, groups_ / plan_.k_unroll) * prefetch_lines_ * kLineBytes;
  for (const bool is_tail : {false, true}) {
    prefetching_tiles_[is_tail] = divide_up(bytes_of_panel(is_tail), tile_bytes);
  }
}

void Int8Product::make_kernels() {
  plan_prefetches();
  const bool has_tail = tail_lanes_ > 0 || tail_vecs_ != plan_.vecs;
  const bool has_body = panels_ > 1 || !has_tail;
  for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
    for (int tail = has_body ? 0 : 1; tail < (has_tail ? 2 : 1); ++tail) {
      for (int prefetches = row_groups_ > 0 ? 1 : 0; prefetches < 2; ++prefetches) {
        kernels_[shorter][tail][prefetches] =
            gemm_int8_tile(tile_plan(tiles_.height - shorter, tail == 1, prefetches == 1));
      }
    }
  }
}

bool Int8Product::is_tail_panel(int64_t panel) const {
  return panel == panels_ - 1 && (tail_lanes_ > 0 || tail_vecs_ != plan_.vecs);
}

int64_t Int8Product::bytes_of_panel(bool is_tail) const {
  return groups_ * (is_tail ? tail_vecs_ : plan_.vecs) * lanes_ * kGroupBytes;
}

GemmInt8TilePlan Int8Product::tile_plan(int rows, bool is_tail, bool prefetches) const {
  GemmInt8TilePlan tile;
  tile.isa = int8_isa(problem_.isa);
  tile.dot = problem_.dot;
  tile.rows = rows;
  tile.vecs = is_tail ? tail_vecs_ : plan_.vecs;
  tile.k_unroll = plan_.k_unroll;
  tile.prefetch_lines = prefetches ? prefetch_lines_ : 0;
  tile.prefetches_on = prefetches && problem_.is_b_near;
  tile.has_rows = problem_.has_rows;
  tile.masked = is_tail && tail_lanes_ > 0;
  tile.row_groups = row_groups_;
  tile.epilogue = epilogue_;
  tile.store = store_;
  return tile;
}

void Int8Product::run(const Int8Operands& operands, int share, int shares) const noexcept {
  const PanelWalk walk{plan_.split, static_cast<int64_t>(offsets_.size()), panels_, tiles_.count, tiles_in_block_};
  walk.run(share, shares, [&](const PanelWalk::Visit& visit) {
    const void* next = visit.is_last ? operands.next_weights : nullptr;
    if (visit.turns && !visit.is_last) next = packed_panel(operands, visit.next.product, visit.next.panel);
    run_panel(operands, visit, next);
  });
}

const char* Int8Product::packed_panel(const Int8Operands& operands, int64_t product, int64_t panel) const {
  const int64_t column = panel * plan_.vecs * lanes_;
  return static_cast<const char*>(operands.b) + offsets_[static_cast<size_t>(product)].b +
         column * groups_ * kGroupBytes;
}

// Tiles of one height are one call for all products.
const void* Int8Product::run_one_panel(const Int8Operands& operands, int64_t panel, const void* b) const noexcept {
  const int64_t column = panel * plan_.vecs * lanes_;
  const bool is_tail = is_tail_panel(panel);
  const void* prefetched = nullptr;
  for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
    const int64_t row = shorter == 0 ? 0 : tiles_.row_of(tiles_.tall);
    GemmInt8TileArgs args;
    args.a = static_cast<const char*>(operands.a) + offsets_[0].a + row * operands.a_stride;
    args.b = b;
    args.c = static_cast<char*>(operands.c) + offsets_[0].c + row * operands.c_stride;
    args.k_groups = groups_;
    args.tiles = shorter == 0 ? tiles_.tall : tiles_.count - tiles_.tall;
    args.a_stride_bytes = operands.a_stride;
    args.c_stride_bytes = operands.c_stride;
    args.column_init = operands.columns + offsets_[0].columns + column;
    if (problem_.has_rows) args.row_init = operands.rows + offsets_[0].rows + row;
    args.tail_lanes = tail_lanes_;
    args.products = static_cast<int64_t>(offsets_.size());
    args.steps = steps_.data();
    args.prefetch_last = operands.next_weights != nullptr ? operands.next_weights : args.b;
    args.prefetch =
        steps_.empty() || problem_.is_b_near ? args.prefetch_last : static_cast<const char*>(args.b) + steps_[0].b;
    // Behind the tall ones all weights are near.
    kernels_[shorter][is_tail][shorter == 0 ? 1 : 0].entry()(&args);
    if (shorter == 0) prefetched = args.prefetch;
  }
  return prefetched;
}

void Int8Product::run_panel(const Int8Operands& operands, const PanelWalk::Visit& visit,
                            const void* next) const noexcept {
  const Int8Offsets& offsets = offsets_[static_cast<size_t>(visit.at.product)];
  const int64_t column = visit.at.panel * plan_.vecs * lanes_;
  const bool is_tail = is_tail_panel(visit.at.panel);
  const int64_t panel_bytes = bytes_of_panel(is_tail);
  const char* b = packed_panel(operands, visit.at.product, visit.at.panel);
  GemmInt8TileArgs args;
  args.b = b;
  args.k_groups = groups_;
  args.a_stride_bytes = operands.a_stride;
  args.c_stride_bytes = operands.c_stride;
  args.column_init = operands.columns + offsets.columns + column;
  args.tail_lanes = tail_lanes_;
  args.prefetch = next != nullptr ? next : b + panel_bytes;
  // Tiles that still prefetch.
  const int64_t tiles = visit.tiles.end - visit.tiles.begin;
  int64_t prefetching = row_groups_ > 0 ? tiles : prefetching_tiles_[is_tail];
  if (tiles == 1 && panel_bytes > kNearPrefetchBytes) {
    args.prefetch = b + kNearPrefetchBytes;
  }
  const int64_t out_bytes = problem_.epilogue ? bits_of(problem_.epilogue->expression.output) / 8 : 4;
  const size_t input_count = problem_.epilogue ? problem_.epilogue->inputs.size() : 0;
  for (int64_t tile = visit.tiles.begin; tile < visit.tiles.end;) {
    const bool shorter = tiles_.is_shorter(tile), prefetches = prefetching > 0;
    int64_t end = tiles_.end_of_height(tile, visit.tiles.end);
    if (prefetches) end = std::min(end, tile + prefetching);
    const int64_t row = tiles_.row_of(tile);
    args.tiles = end - tile;
    args.a = static_cast<const char*>(operands.a) + offsets.a + row * operands.a_stride;
    args.c = static_cast<char*>(operands.c) + offsets.c + row * operands.c_stride + column * out_bytes;
    args.row_init = problem_.has_rows ? operands.rows + offsets.rows + row : nullptr;
    if (operands.large != nullptr) {
      args.large_tile_bytes = large_parts(problem_, plan_);
      args.large = operands.large + tile * args.large_tile_bytes;
    }
    for (size_t i = 0; i < input_count; ++i) {
      const bool by_column = problem_.epilogue->inputs[i] == GemmInputAccess::columns;
      const int64_t element = bits_of(problem_.epilogue->expression.inputs[i + 1]) / 8;
      args.inputs[i] = static_cast<const char*>(operands.inputs[i]) + offsets.inputs[i] +
                       row * operands.input_strides[i] + (by_column ? column * element : 0);
      args.input_stride_bytes[i] = operands.input_strides[i];
    }
    kernels_[shorter][is_tail][prefetches].entry()(&args);
    prefetching -= args.tiles;
    tile = end;
  }
}

}  // namespace lathe
