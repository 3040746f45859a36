#include "ops/gemm/gemm_product.h"

#include <algorithm>

#include "ops/core_cycles.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineFloats = 16;  // of a 64-byte cache line
// How far ahead a panel that is used by one tile only prefetches itself.
constexpr int64_t kNearPrefetchFloats = 4096;

// How many in a row have the same B, where all have as many neighbours.
int64_t count_together(const std::vector<GemmOffsets>& offsets) {
  size_t count = 1;
  while (count < offsets.size() && offsets[count].b == offsets[0].b) ++count;
  if (offsets.size() % count != 0) return 1;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i].b != offsets[i / count * count].b) return 1;
  }
  return static_cast<int64_t>(count);
}

}  // namespace

// One panel of one B, and the row tiles that use it.
struct GemmProduct::Panel {
  int64_t index, first_tile, last_tile;
  int64_t k_begin, k_end, width;
  bool is_tail;
  const float* b;  // at k_begin
  int64_t b_stride;
  const void* next;  // what is streamed after this chunk; null: unknown
};

GemmProduct::GemmProduct(const GemmProblem& problem, const GemmPlan& plan, std::vector<GemmOffsets> offsets)
    : problem_(problem), plan_(plan), offsets_(std::move(offsets)), lanes_(vector_lanes(problem.isa)) {
  if (!is_valid(plan, problem)) throw JitError("not possible here: " + plan.key());
  if (offsets_.empty()) offsets_.resize(1);
  if (plan.split == GemmSplit::same_columns) together_ = count_together(offsets_);
  const int64_t panel_columns = format().panel_columns;
  panels_ = format().panels(problem.n);
  tiles_ = row_tiles(plan, problem.m, problem.threads);
  k_blocks_ = std::max<int64_t>(1, divide_up(problem.k, plan.k_block));
  tiles_in_block_ = std::max<int64_t>(1, plan.row_block / tiles_.height);
  const int64_t last_columns = problem.n - (panels_ - 1) * panel_columns;
  tail_vecs_ = static_cast<int>(divide_up(last_columns, lanes_));
  tail_lanes_ = static_cast<int>(last_columns % lanes_);
  if (tail_vecs_ > 1 && !plan.embed_broadcast && plan.weights == WeightFormat::f32)
    last_share_ = rows_that_share(problem);
  half_tail_ = plan.weights != WeightFormat::bfp20 && halves_last(problem);
  has_tail_ = tail_lanes_ > 0 || tail_vecs_ != plan.vecs || last_share_ > 1 || half_tail_;
  // A panel is used by so many tile calls: each prefetches its share of the next one.
  const int64_t sharing = std::min(tiles_in_block_, tiles_.count) * together_;
  const int64_t lines = std::max<int64_t>(1, words_to(plan.k_unroll) * plan.vecs * lanes_ / kLineFloats);
  prefetch_lines_ = static_cast<int>(lines_of_each(lines, sharing));
  emit_kernels();
  if (problem.b == GemmOperandB::transposed && problem.k > 0) {
    const Isa isa = has_avx512(problem.isa) ? Isa::avx512 : Isa::avx2;
    turn_ = transpose_kernel(plan_transpose(isa, panel_columns, problem.k));
  }
}

PanelFormat GemmProduct::format() const { return {int64_t{plan_.vecs} * lanes_, lanes_}; }

int64_t GemmProduct::packed_elements() const { return format().elements(packed_rows(problem_.k), problem_.n); }

int64_t GemmProduct::scratch_elements() const {
  if (problem_.b == GemmOperandB::packed || (problem_.b == GemmOperandB::row_major && !plan_.pack_b)) return 0;
  return problem_.k * format().panel_columns;
}

GemmTilePlan GemmProduct::tile_plan(int rows, int phase, bool is_tail, bool prefetches) const {
  GemmTilePlan tile;
  tile.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  tile.rows = rows;
  tile.vecs = is_tail ? tail_vecs_ : plan_.vecs;
  tile.k_unroll = plan_.k_unroll;
  if (std::min<int64_t>(plan_.k_block, problem_.k) > problem_.longest_sum) tile.longest_sum = problem_.longest_sum;
  tile.prefetch_lines = prefetches ? prefetch_lines_ : 0;
  tile.embed_broadcast = plan_.embed_broadcast;
  tile.weights = plan_.weights;
  tile.weights_to_l2 = fetches_weights(problem_, plan_.weights);
  tile.accumulate = problem_.accumulates || phase == kMiddle || phase == kLast;
  tile.masked = is_tail && tail_lanes_ > 0;
  tile.b_in_place = problem_.b == GemmOperandB::row_major && !plan_.pack_b;
  if (is_tail && !tile.holds_a()) tile.last_share = last_share_;
  tile.half_last = is_tail && half_tail_;
  if (phase == kOnly || phase == kLast) tile.epilogue = problem_.epilogue;
  // What lies beyond L2 would hold up the end of each tile: 3136x64 by 64x192 0.84 ms without, 0.77 with.
  tile.fetches_ends = !tile.accumulate && result_bytes() > cpu_facts().l2_bytes / 2;
  return tile;
}

void GemmProduct::emit_kernels() {
  const bool has_body = panels_ > 1 || !has_tail_;
  for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
    for (int phase = 0; phase < kPhases; ++phase) {
      if ((phase == kOnly) != (k_blocks_ == 1) || (phase == kMiddle && k_blocks_ < 3)) continue;
      for (int tail = has_body ? 0 : 1; tail < (has_tail_ ? 2 : 1); ++tail) {
        for (int prefetches = 0; prefetches < (can_prefetch() ? 2 : 1); ++prefetches) {
          heights_[static_cast<size_t>(shorter)].kernels[phase][tail][prefetches] =
              gemm_tile(tile_plan(tiles_.height - shorter, phase, tail == 1, prefetches == 1));
        }
      }
    }
  }
}

PanelWalk GemmProduct::walk() const {
  // A run-time B that is copied stays with its panel for all rows; otherwise A's block of rows stays in L2.
  const int64_t block = scratch_elements() > 0 ? tiles_.count : tiles_in_block_;
  return {plan_.split, static_cast<int64_t>(offsets_.size()) / together_, panels_, tiles_.count, block};
}

void GemmProduct::run(const GemmOperands& operands, int share, int shares) const noexcept {
  walk().run(share, shares, [&](const PanelWalk::Visit& visit) {
    const void* next = visit.is_last ? operands.next_weights : nullptr;
    if (can_prefetch() && plan_.split != GemmSplit::rows && visit.turns && !visit.is_last) {
      next = packed_panel(operands.b, visit.next.product, visit.next.panel);
    }
    const std::span<const GemmOffsets> all = offsets_;
    run_panel(operands, all.subspan(static_cast<size_t>(visit.at.product * together_), static_cast<size_t>(together_)),
              visit.at.panel, visit.tiles, next);
  });
}

const float* GemmProduct::first_weights(const float* b, int share, int shares) const noexcept {
  const PanelWalk::Place first = walk().first(share, shares);
  return packed_panel(b, first.product, first.panel);
}

void GemmProduct::copy_panel(const GemmOperands& operands, const float* b, int64_t panel) const noexcept {
  MatrixView view{b, problem_.k, problem_.n, operands.b_stride, 1};
  if (problem_.b == GemmOperandB::transposed) std::swap(view.row_stride, view.column_stride);
  const int64_t width = format().panel_columns, column = panel * width;
  if (!turn_ || column + width > problem_.n) return pack_panels(view, format(), panel, panel + 1, 1, operands.scratch);
  turn_(static_cast<const void*>(b + column * operands.b_stride), static_cast<void*>(operands.scratch),
        operands.b_stride * 4, width * 4, width, problem_.k);
}

int64_t GemmProduct::first_row_of(int64_t k_block) const {
  const int64_t row = problem_.k * k_block / k_blocks_;
  return std::min(problem_.k, round_up(row, unit_rows(plan_.weights)));
}

void GemmProduct::run_panel(const GemmOperands& operands, std::span<const GemmOffsets> offsets, int64_t index,
                            const Range& tiles, const void* next) const noexcept {
  Panel panel{};
  panel.index = index;
  panel.first_tile = tiles.begin;
  panel.last_tile = tiles.end;
  panel.is_tail = index == panels_ - 1 && has_tail_;
  panel.width = format().width_of(index, problem_.n);
  const int64_t column = index * format().panel_columns;
  const float* b = operands.b + offsets[0].b;
  const float* packed = b + column * packed_rows(problem_.k);
  if (problem_.b != GemmOperandB::packed && scratch_elements() > 0) {
    copy_panel(operands, b, index);
    packed = operands.scratch;
  }
  GemmTileArgs args;
  args.b_scales = packed + words_to(problem_.k) * panel.width;
  for (int64_t block = 0; block < k_blocks_; ++block) {
    panel.k_begin = first_row_of(block);
    panel.k_end = first_row_of(block + 1);
    const bool in_place = problem_.b == GemmOperandB::row_major && !plan_.pack_b;
    panel.b =
        in_place ? b + panel.k_begin * operands.b_stride + column : packed + words_to(panel.k_begin) * panel.width;
    panel.next = packed + (block + 1 == k_blocks_ ? packed_rows(problem_.k) : words_to(panel.k_end)) * panel.width;
    if (next && block + 1 == k_blocks_) panel.next = next;
    const int phase = k_blocks_ == 1 ? kOnly : block == 0 ? kFirst : block + 1 == k_blocks_ ? kLast : kMiddle;
    run_chunk(args, operands, offsets, panel, phase);
  }
}

void GemmProduct::run_chunk(GemmTileArgs& args, const GemmOperands& operands, std::span<const GemmOffsets> offsets,
                            const Panel& panel, int phase) const noexcept {
  const int64_t column = panel.index * format().panel_columns;
  args.b = panel.b;
  args.k = panel.k_end - panel.k_begin;
  args.a_stride_bytes = operands.a_stride * 4;
  args.b_stride_bytes = operands.b_stride * 4;
  args.c_stride_bytes = operands.c_stride * 4;
  args.tail_lanes = tail_lanes_;
  args.prefetch = panel.next;
  const int64_t chunk_floats = words_to(args.k) * panel.width;
  int64_t prefetching = 0;  // tiles that still prefetch
  if (can_prefetch()) {
    const int64_t share = std::max<int64_t>(1, args.k / plan_.k_unroll) * prefetch_lines_ * kLineFloats;
    prefetching = divide_up(chunk_floats, share);
    if (panel.last_tile - panel.first_tile == 1 && offsets.size() == 1 && chunk_floats > kNearPrefetchFloats) {
      args.prefetch = panel.b + kNearPrefetchFloats;
    }
  }
  const size_t input_count = problem_.epilogue ? problem_.epilogue->inputs.size() : 0;
  for (const GemmOffsets& at : offsets) {
    for (int64_t tile = panel.first_tile; tile < panel.last_tile;) {
      const bool shorter = tiles_.is_shorter(tile), prefetches = prefetching > 0;
      int64_t end = tiles_.end_of_height(tile, panel.last_tile);
      if (prefetches) end = std::min(end, tile + prefetching);
      const int64_t row = tiles_.row_of(tile);
      args.tiles = end - tile;
      args.a = operands.a + at.a + row * operands.a_stride + panel.k_begin;
      args.c = operands.c + at.c + row * operands.c_stride + column;
      for (size_t i = 0; i < input_count; ++i) {
        const bool by_column = problem_.epilogue->inputs[i] == GemmInputAccess::columns;
        args.inputs[i] = operands.inputs[i] + at.inputs[i] + row * operands.input_strides[i] + (by_column ? column : 0);
        args.input_stride_bytes[i] = operands.input_strides[i] * 4;
      }
      heights_[shorter].kernels[phase][panel.is_tail][prefetches].entry()(&args);
      prefetching -= args.tiles;
      tile = end;
    }
  }
}

}  // namespace lathe
