#include "ops/attention/attention_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLineFloats = 16;  // of a 64-byte cache line

// The scores' rows divided by their sums.
GemmEpilogue divide_by_sum() {
  GemmEpilogue epilogue;
  epilogue.expression.inputs = {DType::f32, DType::f32};
  const int x = epilogue.expression.add({.op = ExprOp::input, .a = 0});
  const int factor = epilogue.expression.add({.op = ExprOp::input, .a = 1});
  epilogue.expression.add({.op = ExprOp::mul, .a = x, .b = factor});
  epilogue.inputs = {GemmInputAccess::uniform};
  return epilogue;
}

}  // namespace

std::string AttentionProblem::key() const {
  std::string text = fmt::format("f32 b{} m{} keys{} k{} n{}{}{} {}", matrices, rows, keys, size, value_size,
                                 k_by_rows ? "" : " K turned", v_by_rows ? "" : " V turned", name_of(isa));
  if (scores) text += " " + to_string(scores->expression);
  return text;
}

double AttentionProblem::flop() const {
  constexpr double kSoftmax = 14;  // of one score
  const double all = static_cast<double>(matrices) * static_cast<double>(rows) * static_cast<double>(keys);
  return all * (2.0 * static_cast<double>(size + value_size) + kSoftmax);
}

std::string AttentionPlan::key() const {
  return fmt::format("attention {}x{} tiles {} keys {}", rows, vecs, block_tiles, key_block);
}

AttentionPlan default_attention_plan(const AttentionProblem& problem) {
  AttentionPlan plan;
  const int lanes = vector_lanes(problem.isa);
  if (!has_avx512(problem.isa)) plan.rows = problem.scores ? 4 : 6;
  if (has_avx512(problem.isa) && problem.scores) plan.rows = 12;
  plan.rows = static_cast<int>(std::min<int64_t>(plan.rows, problem.rows));
  const int64_t width = int64_t{plan.vecs} * lanes;
  // Blocks of equal length: 520 keys are 2 x 260, not 512 + 8.
  constexpr int64_t kMostKeys = 512;
  const int64_t blocks = divide_up(problem.keys, kMostKeys);
  plan.key_block = static_cast<int>(round_up(divide_up(problem.keys, blocks), width));
  // The scores of a block stay in L2 beside all of K and V: fewer blocks read those anew, which is worth 1 % more than
  // scores in L1.
  constexpr int64_t kScoreFloats = 24 << 10;
  plan.block_tiles = static_cast<int>(std::clamp<int64_t>(kScoreFloats / (plan.rows * plan.key_block), 1, 16));
  return plan;
}

// One thread's memory.
struct AttentionProduct::Scratch {
  float *k, *v, *scores, *tops, *sums, *factors;
};

// A block of rows against a block of keys.
struct AttentionProduct::Block {
  int64_t first_tile, last_tile, first_row, rows;
  int64_t first_key, keys;
  Phase phase;
};

// Prefetches the operands of the next matrix, a share beside each panel of this one: heads that lie side by side are
// short rows far apart, which the processor's own prefetchers do not foresee.
class AttentionProduct::Ahead {
 public:
  // `shares`: calls of fetch() until all is fetched.
  explicit Ahead(int64_t shares) : shares_(shares) {}
  void add(const float* at, int64_t rows, int64_t columns, int64_t stride) {
    streams_[count_++] = {at, rows, columns, stride};
  }
  void fetch() {
    constexpr int kIntoL2 = 2;
    for (size_t i = 0; i < count_; ++i) {
      const Stream& stream = streams_[i];
      const int64_t end = stream.rows * std::min(done_ + 1, shares_) / shares_;
      for (int64_t row = stream.rows * std::min(done_, shares_) / shares_; row < end; ++row) {
        for (int64_t column = 0; column < stream.columns; column += kLineFloats)
          __builtin_prefetch(stream.at + row * stream.stride + column, 0, kIntoL2);
      }
    }
    ++done_;
  }

 private:
  struct Stream {
    const float* at;
    int64_t rows, columns, stride;
  };
  std::array<Stream, 3> streams_ = {};
  size_t count_ = 0;
  int64_t shares_, done_ = 0;
};

AttentionProduct::AttentionProduct(const AttentionProblem& problem, const AttentionPlan& plan,
                                   std::vector<AttentionOffsets> offsets)
    : problem_(problem), plan_(plan), offsets_(std::move(offsets)), lanes_(vector_lanes(problem.isa)) {
  format_ = {int64_t{plan.vecs} * lanes_, lanes_};
  tiles_ = divide_up(problem.rows, plan.rows);
  height_ = static_cast<int>(divide_up(problem.rows, tiles_));
  tall_tiles_ = problem.rows - tiles_ * (height_ - 1);
  blocks_ = divide_up(tiles_, plan.block_tiles);
  key_blocks_ = divide_up(problem.keys, plan.key_block);
  // Rows a multiple of 4 KiB apart would share one set of L1.
  const int64_t columns = round_up(std::min<int64_t>(problem.keys, plan.key_block), kLineFloats);
  score_stride_ = columns + kLineFloats;
  emit_kernels();
}

GemmTilePlan AttentionProduct::tile_plan(int rows, int64_t columns, bool is_tail) const {
  GemmTilePlan tile;
  tile.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  tile.rows = rows;
  const int64_t last = columns - (format_.panels(columns) - 1) * format_.panel_columns;
  tile.vecs = is_tail ? static_cast<int>(divide_up(last, lanes_)) : plan_.vecs;
  tile.masked = is_tail && last % lanes_ != 0;
  return tile;
}

bool AttentionProduct::has_tail(int64_t columns) const { return columns % format_.panel_columns != 0; }

void AttentionProduct::emit_kernels() {
  for (int shorter = 0; shorter < (tall_tiles_ == tiles_ ? 1 : 2); ++shorter) {
    Height& height = heights_[static_cast<size_t>(shorter)];
    for (int tail = 0; tail < 2; ++tail) {
      if (tail == 0 ? problem_.keys >= format_.panel_columns : has_tail(problem_.keys)) {
        GemmTilePlan tile = tile_plan(height_ - shorter, problem_.keys, tail == 1);
        tile.epilogue = problem_.scores;
        height.scores[tail] = gemm_tile(tile);
      }
      if (tail == 0 ? problem_.value_size < format_.panel_columns : !has_tail(problem_.value_size)) continue;
      for (int phase = 0; phase < kPhases; ++phase) {
        if ((phase == kOnly) != (key_blocks_ == 1) || (phase == kMiddle && key_blocks_ < 3)) continue;
        GemmTilePlan tile = tile_plan(height_ - shorter, problem_.value_size, tail == 1);
        tile.accumulate = phase == kMiddle || phase == kLast;
        if (phase == kOnly || phase == kLast) tile.epilogue = divide_by_sum();
        height.mixed[phase][tail] = gemm_tile(tile);
      }
    }
  }
  const Isa isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  softmax_[0] = attention_softmax_kernel({isa, false});
  if (key_blocks_ > 1) softmax_[1] = attention_softmax_kernel({isa, true});
  if (problem_.k_by_rows) turn_ = transpose_kernel(plan_transpose(isa, format_.panel_columns, problem_.size));
}

int64_t AttentionProduct::row_of(int64_t tile) const {
  return tile <= tall_tiles_ ? tile * height_ : tall_tiles_ * height_ + (tile - tall_tiles_) * (height_ - 1);
}

int64_t AttentionProduct::block_rows() const { return round_up(int64_t{height_} * plan_.block_tiles, kLineFloats); }

AttentionProduct::Scratch AttentionProduct::scratch_of(float* memory) const {
  Scratch scratch{};
  scratch.k = memory;
  scratch.v = scratch.k + format_.elements(problem_.size, problem_.keys);
  scratch.scores = scratch.v + format_.elements(problem_.keys, problem_.value_size);
  scratch.tops = scratch.scores + block_rows() * score_stride_;
  scratch.sums = scratch.tops + block_rows();
  scratch.factors = scratch.sums + block_rows();
  return scratch;
}

int64_t AttentionProduct::scratch_elements() const {
  const int64_t packed =
      format_.elements(problem_.size, problem_.keys) + format_.elements(problem_.keys, problem_.value_size);
  return round_up(packed + block_rows() * (score_stride_ + 3), kLineFloats);
}

void AttentionProduct::pack(const AttentionOperands& operands, const AttentionOffsets& offsets,
                            const Scratch& scratch) const noexcept {
  const float *k = operands.k + offsets.k, *v = operands.v + offsets.v;
  MatrixView k_view{k, problem_.size, problem_.keys, operands.k_stride, 1};
  MatrixView v_view{v, problem_.keys, problem_.value_size, operands.v_stride, 1};
  if (problem_.k_by_rows) std::swap(k_view.row_stride, k_view.column_stride);
  if (!problem_.v_by_rows) std::swap(v_view.row_stride, v_view.column_stride);
  const int64_t width = format_.panel_columns, whole = problem_.k_by_rows ? problem_.keys / width : 0;
  for (int64_t panel = 0; panel < whole; ++panel) {
    turn_(static_cast<const void*>(k + panel * width * operands.k_stride),
          static_cast<void*>(scratch.k + panel * width * problem_.size), operands.k_stride * 4, width * 4, width,
          problem_.size);
  }
  if (whole < format_.panels(problem_.keys)) {
    pack_panels(k_view, format_, whole, format_.panels(problem_.keys), 1, scratch.k + whole * width * problem_.size);
  }
  pack_panels(v_view, format_, 0, format_.panels(problem_.value_size), 1, scratch.v);
}

void AttentionProduct::score(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                             const Block& block, Ahead& ahead) const noexcept {
  const int64_t width = format_.panel_columns, last_panel = format_.panels(problem_.keys) - 1;
  const size_t input_count = problem_.scores ? problem_.scores->inputs.size() : 0;
  GemmTileArgs args{};
  args.k = problem_.size;
  args.a_stride_bytes = operands.q_stride * 4;
  args.c_stride_bytes = score_stride_ * 4;
  args.tail_lanes = problem_.keys % lanes_;
  for (int64_t key = block.first_key; key < block.first_key + block.keys; key += width) {
    ahead.fetch();
    const int64_t panel = key / width;
    const bool is_tail = panel == last_panel && has_tail(problem_.keys);
    args.b = scratch.k + key * problem_.size;
    for (int64_t tile = block.first_tile; tile < block.last_tile;) {
      const bool shorter = tile >= tall_tiles_;
      const int64_t end = shorter ? block.last_tile : std::min(block.last_tile, tall_tiles_), row = row_of(tile);
      args.tiles = end - tile;
      args.a = operands.q + offsets.q + row * operands.q_stride;
      args.c = scratch.scores + (row - block.first_row) * score_stride_ + (key - block.first_key);
      for (size_t i = 0; i < input_count; ++i) {
        const bool by_column = problem_.scores->inputs[i] == GemmInputAccess::columns;
        args.inputs[i] =
            operands.inputs[i] + offsets.inputs[i] + row * operands.input_strides[i] + (by_column ? key : 0);
        args.input_stride_bytes[i] = operands.input_strides[i] * 4;
      }
      heights_[shorter].scores[is_tail].entry()(&args);
      tile = end;
    }
  }
}

void AttentionProduct::mix(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                           const Block& block, Ahead& ahead) const noexcept {
  const int64_t width = format_.panel_columns, panels = format_.panels(problem_.value_size);
  GemmTileArgs args{};
  args.k = block.keys;
  args.a_stride_bytes = score_stride_ * 4;
  args.c_stride_bytes = operands.y_stride * 4;
  args.tail_lanes = problem_.value_size % lanes_;
  args.input_stride_bytes[0] = 4;
  for (int64_t panel = 0; panel < panels; ++panel) {
    ahead.fetch();
    const bool is_tail = panel == panels - 1 && has_tail(problem_.value_size);
    args.b = scratch.v + panel * width * problem_.keys + block.first_key * format_.width_of(panel, problem_.value_size);
    for (int64_t tile = block.first_tile; tile < block.last_tile;) {
      const bool shorter = tile >= tall_tiles_;
      const int64_t end = shorter ? block.last_tile : std::min(block.last_tile, tall_tiles_), row = row_of(tile);
      args.tiles = end - tile;
      args.a = scratch.scores + (row - block.first_row) * score_stride_;
      args.c = operands.y + offsets.y + row * operands.y_stride + panel * width;
      args.inputs[0] = scratch.sums + (row - block.first_row);
      heights_[shorter].mixed[block.phase][is_tail].entry()(&args);
      tile = end;
    }
  }
}

// Sums become factors; a row without any key gets 0 where that is asked for.
void AttentionProduct::finish_sums(const Scratch& scratch, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    const bool is_empty = !(scratch.sums[row] > 0);
    scratch.sums[row] = is_empty && problem_.zeroes_empty ? 0.f : 1 / scratch.sums[row];
  }
}

void AttentionProduct::clear_empty_rows(const AttentionOperands& operands, const AttentionOffsets& offsets,
                                        const Scratch& scratch, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    if (scratch.sums[row] != 0) continue;
    float* y = operands.y + offsets.y + (block.first_row + row) * operands.y_stride;
    std::fill(y, y + problem_.value_size, 0.f);
  }
}

void AttentionProduct::run_rows(const AttentionOperands& operands, const AttentionOffsets& offsets,
                                const Scratch& scratch, int64_t first_tile, int64_t last_tile,
                                Ahead& ahead) const noexcept {
  Block block{};
  block.first_tile = first_tile;
  block.last_tile = last_tile;
  block.first_row = row_of(first_tile);
  block.rows = row_of(last_tile) - block.first_row;
  for (int64_t part = 0; part < key_blocks_; ++part) {
    const bool is_last = part + 1 == key_blocks_;
    block.first_key = part * plan_.key_block;
    block.keys = std::min<int64_t>(plan_.key_block, problem_.keys - block.first_key);
    block.phase = key_blocks_ == 1 ? kOnly : part == 0 ? kFirst : is_last ? kLast : kMiddle;
    score(operands, offsets, scratch, block, ahead);
    const AttentionSoftmaxArgs args{scratch.scores, block.rows,   block.keys,     score_stride_ * 4,
                                    scratch.tops,   scratch.sums, scratch.factors};
    softmax_[part > 0].entry()(&args);
    for (int64_t row = 0; part > 0 && row < block.rows; ++row) {
      float* y = operands.y + offsets.y + (block.first_row + row) * operands.y_stride;
      for (int64_t j = 0; j < problem_.value_size; ++j) y[j] *= scratch.factors[row];
    }
    if (is_last) finish_sums(scratch, block);
    mix(operands, offsets, scratch, block, ahead);
    if (is_last && problem_.zeroes_empty) clear_empty_rows(operands, offsets, scratch, block);
  }
}

void AttentionProduct::run(const AttentionOperands& operands, int share, int shares) const noexcept {
  const Scratch scratch = scratch_of(operands.scratch);
  const Range mine = split_evenly(static_cast<int64_t>(offsets_.size()) * blocks_, share, shares);
  const AttentionOffsets* packed = nullptr;
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t matrix = item / blocks_, end = std::min<int64_t>(mine.end, (matrix + 1) * blocks_);
    const AttentionOffsets& offsets = offsets_[static_cast<size_t>(matrix)];
    // Heads that share keys follow each other.
    if (packed == nullptr || packed->k != offsets.k || packed->v != offsets.v) pack(operands, offsets, scratch);
    packed = &offsets;
    const int64_t panels = format_.panels(problem_.keys) + key_blocks_ * format_.panels(problem_.value_size);
    Ahead ahead((end - item) * panels);
    if (end < mine.end) {
      const AttentionOffsets& next = offsets_[static_cast<size_t>(matrix + 1)];
      ahead.add(operands.q + next.q, problem_.rows, problem_.size, operands.q_stride);
      const auto add = [&](const float* at, bool by_rows, int64_t rows, int64_t columns, int64_t stride) {
        ahead.add(at, by_rows ? rows : columns, by_rows ? columns : rows, stride);
      };
      add(operands.k + next.k, problem_.k_by_rows, problem_.keys, problem_.size, operands.k_stride);
      add(operands.v + next.v, problem_.v_by_rows, problem_.keys, problem_.value_size, operands.v_stride);
    }
    for (; item < end; ++item) {
      const int64_t block = item - matrix * blocks_;
      run_rows(operands, offsets, scratch, tiles_ * block / blocks_, tiles_ * (block + 1) / blocks_, ahead);
    }
  }
}

}  // namespace lathe
