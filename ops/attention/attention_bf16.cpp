#include "ops/attention/attention_bf16.h"

#include <algorithm>

#include "src/base/half.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kLineFloats = 16;  // of a 64-byte cache line

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Elements of a matrix by their strides.
struct Matrix16 {
  const uint16_t* data;
  int64_t rows, columns, row_stride, column_stride;
};

// Panels from `first` on, pairs of rows: column by column the elements of both, zeros beyond the matrix.
void pack_pairs(const Matrix16& matrix, const PanelFormat& format, int64_t first, uint16_t* out) noexcept {
  for (int64_t panel = first; panel < format.panels(matrix.columns); ++panel) {
    const int64_t column = panel * format.panel_columns, width = format.width_of(panel, matrix.columns);
    const int64_t valid = std::min(width, matrix.columns - column);
    for (int64_t row = 0; row < matrix.rows; row += 2) {
      const uint16_t* from = matrix.data + row * matrix.row_stride + column * matrix.column_stride;
      const bool is_pair = row + 1 < matrix.rows;
      if (is_pair && matrix.column_stride == 1) {  // a loop of its own: the compiler interleaves
        const uint16_t* below = from + matrix.row_stride;
        for (int64_t i = 0; i < valid; ++i) {
          out[2 * i] = from[i];
          out[2 * i + 1] = below[i];
        }
      } else {
        for (int64_t i = 0; i < valid; ++i) {
          out[2 * i] = from[i * matrix.column_stride];
          out[2 * i + 1] = is_pair ? from[matrix.row_stride + i * matrix.column_stride] : uint16_t{0};
        }
      }
      std::fill(out + 2 * valid, out + 2 * width, uint16_t{0});
      out += 2 * width;
    }
  }
}

GemmEpilogue times_factor_of_row() {
  GemmEpilogue epilogue;
  epilogue.expression.inputs = {DType::f32, DType::f32};
  const int x = epilogue.expression.add({.op = ExprOp::input, .a = 0});
  const int factor = epilogue.expression.add({.op = ExprOp::input, .a = 1});
  epilogue.expression.add({.op = ExprOp::mul, .a = x, .b = factor});
  epilogue.inputs = {GemmInputAccess::uniform};
  return epilogue;
}

}  // namespace

// One thread's memory.
struct AttentionBf16::Scratch {
  uint16_t *k, *v;
  float *scores, *tops, *sums, *factors, *y;
};

// A block of rows against a block of keys.
struct AttentionBf16::Block {
  int64_t first_tile, last_tile, first_row, rows;
  int64_t first_key, keys;
  bool is_later;
};

AttentionBf16::AttentionBf16(const AttentionProblem& problem, std::vector<AttentionOffsets> offsets)
    : problem_(problem), plan_(default_attention_plan(problem)), offsets_(std::move(offsets)) {
  if (problem.isa != Isa::avx512_bf16) throw JitError("attention in bfloat16 needs AVX512-BF16");
  if (problem.size % 2 != 0) throw JitError("attention in bfloat16 takes pairs");
  format_ = {int64_t{plan_.vecs} * kLanes, kLanes};
  tiles_ = divide_up(problem.rows, plan_.rows);
  height_ = static_cast<int>(divide_up(problem.rows, tiles_));
  tall_tiles_ = problem.rows - tiles_ * (height_ - 1);
  blocks_ = divide_up(tiles_, plan_.block_tiles);
  key_blocks_ = divide_up(problem.keys, plan_.key_block);
  key_pairs_ = divide_up(problem.keys, 2);
  // Rows a multiple of 4 KiB apart would share one set of L1.
  score_stride_ = round_up(std::min<int64_t>(problem.keys, plan_.key_block), kLineFloats) + kLineFloats;
  emit_kernels();
}

std::string AttentionBf16::key() const { return plan_.key() + " bf16"; }

bool AttentionBf16::has_tail(int64_t columns) const { return columns % format_.panel_columns != 0; }

GemmTilePlan AttentionBf16::tile_plan(int rows, int64_t columns, bool is_tail) const {
  GemmTilePlan tile;
  tile.isa = Isa::avx512_bf16;
  tile.bf16 = true;
  tile.widens = true;
  tile.rows = rows;
  const int64_t last = columns - (format_.panels(columns) - 1) * format_.panel_columns;
  tile.vecs = is_tail ? static_cast<int>(divide_up(last, kLanes)) : plan_.vecs;
  tile.masked = is_tail && last % kLanes != 0;
  return tile;
}

void AttentionBf16::emit_kernels() {
  for (int shorter = 0; shorter < (tall_tiles_ == tiles_ ? 1 : 2); ++shorter) {
    Height& height = heights_[static_cast<size_t>(shorter)];
    for (int tail = 0; tail < 2; ++tail) {
      if (tail == 0 ? problem_.keys >= format_.panel_columns : has_tail(problem_.keys)) {
        GemmTilePlan tile = tile_plan(height_ - shorter, problem_.keys, tail == 1);
        tile.epilogue = problem_.scores;
        height.scores[tail] = gemm_tile(tile);
      }
      if (tail == 0 ? problem_.value_size < format_.panel_columns : !has_tail(problem_.value_size)) continue;
      GemmTilePlan tile = tile_plan(height_ - shorter, problem_.value_size, tail == 1);
      if (key_blocks_ == 1) {
        tile.epilogue = times_factor_of_row();
        tile.widens = false;
        height.mixed[tail] = gemm_tile(tile);
        continue;
      }
      height.mixed[tail] = gemm_tile(tile);
      tile.accumulate = true;
      height.mixed_later[tail] = gemm_tile(tile);
    }
  }
  softmax_[0] = attention_softmax_kernel({Isa::avx512_bf16, false, true});
  if (key_blocks_ > 1) softmax_[1] = attention_softmax_kernel({Isa::avx512_bf16, true, true});
  if (problem_.k_by_rows)
    turn_ = transpose_kernel(plan_transpose(Isa::avx512, format_.panel_columns, problem_.size / 2));
}

int64_t AttentionBf16::row_of(int64_t tile) const {
  return tile <= tall_tiles_ ? tile * height_ : tall_tiles_ * height_ + (tile - tall_tiles_) * (height_ - 1);
}

int64_t AttentionBf16::block_rows() const { return round_up(int64_t{height_} * plan_.block_tiles, kLineFloats); }
int64_t AttentionBf16::y_stride() const { return round_up(problem_.value_size, kLineFloats); }

AttentionBf16::Scratch AttentionBf16::scratch_of(float* memory) const {
  Scratch scratch{};
  float* v = memory + format_.elements(problem_.size / 2, problem_.keys);  // a pair is as large as a float
  scratch.k = reinterpret_cast<uint16_t*>(memory);
  scratch.v = reinterpret_cast<uint16_t*>(v);
  scratch.scores = v + format_.elements(key_pairs_, problem_.value_size);
  scratch.tops = scratch.scores + block_rows() * score_stride_;
  scratch.sums = scratch.tops + block_rows();
  scratch.factors = scratch.sums + block_rows();
  scratch.y = scratch.factors + block_rows();
  return scratch;
}

int64_t AttentionBf16::scratch_elements() const {
  const int64_t packed =
      format_.elements(problem_.size / 2, problem_.keys) + format_.elements(key_pairs_, problem_.value_size);
  const int64_t gathered = key_blocks_ > 1 ? y_stride() : 0;
  return round_up(packed + block_rows() * (score_stride_ + 3 + gathered), kLineFloats);
}

// Pairs of one key lie together where K is dense along `size`: they turn like floats.
void AttentionBf16::pack(const AttentionBf16Operands& operands, const AttentionOffsets& offsets,
                         const Scratch& scratch) const noexcept {
  const uint16_t *k = operands.k + offsets.k, *v = operands.v + offsets.v;
  Matrix16 k_matrix{k, problem_.size, problem_.keys, operands.k_stride, 1};
  Matrix16 v_matrix{v, problem_.keys, problem_.value_size, operands.v_stride, 1};
  if (problem_.k_by_rows) std::swap(k_matrix.row_stride, k_matrix.column_stride);
  if (!problem_.v_by_rows) std::swap(v_matrix.row_stride, v_matrix.column_stride);
  const int64_t width = format_.panel_columns, whole = problem_.k_by_rows ? problem_.keys / width : 0;
  for (int64_t panel = 0; panel < whole; ++panel) {
    turn_(static_cast<const void*>(k + panel * width * operands.k_stride),
          static_cast<void*>(scratch.k + panel * width * problem_.size), operands.k_stride * 2, width * 4, width,
          problem_.size / 2);
  }
  pack_pairs(k_matrix, format_, whole, scratch.k + whole * width * problem_.size);
  pack_pairs(v_matrix, format_, 0, scratch.v);
}

void AttentionBf16::score(const AttentionBf16Operands& operands, const AttentionOffsets& offsets,
                          const Scratch& scratch, const Block& block) const noexcept {
  const int64_t width = format_.panel_columns, last_panel = format_.panels(problem_.keys) - 1;
  const size_t input_count = problem_.scores ? problem_.scores->inputs.size() : 0;
  GemmTileArgs args{};
  args.k = problem_.size / 2;
  args.a_stride_bytes = operands.q_stride * 2;
  args.c_stride_bytes = score_stride_ * 4;
  args.tail_lanes = problem_.keys % kLanes;
  for (int64_t key = block.first_key; key < block.first_key + block.keys; key += width) {
    const bool is_tail = key / width == last_panel && has_tail(problem_.keys);
    args.b = reinterpret_cast<const float*>(scratch.k + key * problem_.size);
    for (int64_t tile = block.first_tile; tile < block.last_tile;) {
      const bool shorter = tile >= tall_tiles_;
      const int64_t end = shorter ? block.last_tile : std::min(block.last_tile, tall_tiles_), row = row_of(tile);
      args.tiles = end - tile;
      args.a = reinterpret_cast<const float*>(operands.q + offsets.q + row * operands.q_stride);
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

void AttentionBf16::mix(const AttentionBf16Operands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                        const Block& block) const noexcept {
  const int64_t width = format_.panel_columns, panels = format_.panels(problem_.value_size);
  const bool gathers = key_blocks_ > 1;
  GemmTileArgs args{};
  args.k = divide_up(block.keys, 2);
  args.a_stride_bytes = score_stride_ * 4;
  args.c_stride_bytes = gathers ? y_stride() * 4 : operands.y_stride * 2;
  args.tail_lanes = problem_.value_size % kLanes;
  args.input_stride_bytes[0] = 4;
  for (int64_t panel = 0; panel < panels; ++panel) {
    const bool is_tail = panel == panels - 1 && has_tail(problem_.value_size);
    const int64_t first_pair = block.first_key / 2;  // blocks begin at whole panels
    args.b = reinterpret_cast<const float*>(
        scratch.v + 2 * (panel * width * key_pairs_ + first_pair * format_.width_of(panel, problem_.value_size)));
    for (int64_t tile = block.first_tile; tile < block.last_tile;) {
      const bool shorter = tile >= tall_tiles_;
      const int64_t end = shorter ? block.last_tile : std::min(block.last_tile, tall_tiles_), row = row_of(tile);
      args.tiles = end - tile;
      args.a = scratch.scores + (row - block.first_row) * score_stride_;
      uint16_t* y = operands.y + offsets.y + row * operands.y_stride + panel * width;
      args.c = gathers ? scratch.y + (row - block.first_row) * y_stride() + panel * width : reinterpret_cast<float*>(y);
      args.inputs[0] = scratch.sums + (row - block.first_row);
      const Height& height = heights_[shorter];
      (block.is_later ? height.mixed_later : height.mixed)[is_tail].entry()(&args);
      tile = end;
    }
  }
}

// Rounds what several blocks of keys gave; rows without any key become 0 where that is asked for.
void AttentionBf16::finish(const AttentionBf16Operands& operands, const AttentionOffsets& offsets,
                           const Scratch& scratch, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    uint16_t* y = operands.y + offsets.y + (block.first_row + row) * operands.y_stride;
    const float* gathered = scratch.y + row * y_stride();
    const float factor = scratch.sums[row];
    if (problem_.zeroes_empty && factor == 0) {
      std::fill(y, y + problem_.value_size, uint16_t{0});
    } else if (key_blocks_ > 1) {
      for (int64_t j = 0; j < problem_.value_size; ++j) y[j] = float_to_bfloat(gathered[j] * factor);
    }
  }
}

void AttentionBf16::run_rows(const AttentionBf16Operands& operands, const AttentionOffsets& offsets,
                             const Scratch& scratch, int64_t first_tile, int64_t last_tile) const noexcept {
  Block block{};
  block.first_tile = first_tile;
  block.last_tile = last_tile;
  block.first_row = row_of(first_tile);
  block.rows = row_of(last_tile) - block.first_row;
  for (int64_t part = 0; part < key_blocks_; ++part) {
    block.first_key = part * plan_.key_block;
    block.keys = std::min<int64_t>(plan_.key_block, problem_.keys - block.first_key);
    block.is_later = part > 0;
    score(operands, offsets, scratch, block);
    const AttentionSoftmaxArgs args{scratch.scores, block.rows,   block.keys,     score_stride_ * 4,
                                    scratch.tops,   scratch.sums, scratch.factors};
    softmax_[block.is_later].entry()(&args);
    for (int64_t row = 0; block.is_later && row < block.rows; ++row) {
      float* gathered = scratch.y + row * y_stride();
      for (int64_t j = 0; j < problem_.value_size; ++j) gathered[j] *= scratch.factors[row];
    }
    for (int64_t row = 0; part + 1 == key_blocks_ && row < block.rows; ++row) {
      const bool is_empty = !(scratch.sums[row] > 0);
      scratch.sums[row] = is_empty && problem_.zeroes_empty ? 0.F : 1 / scratch.sums[row];
    }
    mix(operands, offsets, scratch, block);
  }
  finish(operands, offsets, scratch, block);
}

void AttentionBf16::run(const AttentionBf16Operands& operands, int share, int shares) const noexcept {
  const Scratch scratch = scratch_of(operands.scratch);
  const Range mine = split_evenly(static_cast<int64_t>(offsets_.size()) * blocks_, share, shares);
  const AttentionOffsets* packed = nullptr;
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t matrix = item / blocks_, end = std::min<int64_t>(mine.end, (matrix + 1) * blocks_);
    const AttentionOffsets& offsets = offsets_[static_cast<size_t>(matrix)];
    // Heads that share keys follow each other.
    if (packed == nullptr || packed->k != offsets.k || packed->v != offsets.v) pack(operands, offsets, scratch);
    packed = &offsets;
    for (; item < end; ++item) {
      const int64_t block = item - matrix * blocks_;
      run_rows(operands, offsets, scratch, tiles_ * block / blocks_, tiles_ * (block + 1) / blocks_);
    }
  }
}

}  // namespace lathe
