#include "ops/attention/attention_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/divide.h"
#include "src/base/half.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kLineFloats = kLineBytes / 4;

// A row of results times its factor, which is 1 / its sum.
GemmEpilogue times_factor() {
  GemmEpilogue epilogue;
  epilogue.expression.inputs = {DType::f32, DType::f32};
  const int x = epilogue.expression.add({.op = ExprOp::input, .a = 0});
  const int factor = epilogue.expression.add({.op = ExprOp::input, .a = 1});
  epilogue.expression.add({.op = ExprOp::mul, .a = x, .b = factor});
  epilogue.inputs = {GemmInputAccess::uniform};
  return epilogue;
}

AttentionPlan choose_plan(const AttentionProblem& problem) {
  AttentionPlan plan;
  const int lanes = vector_lanes(problem.isa);
  if (!has_avx512(problem.isa)) plan.rows = problem.scores ? 4 : 6;
  if (has_avx512(problem.isa) && problem.scores) plan.rows = 12;
  plan.rows = static_cast<int>(std::min<int64_t>(plan.rows, problem.rows));
  const int64_t width = int64_t{plan.vecs} * lanes;
  // Blocks of equal length: 520 keys are 2 x 260, not 512 + 8. A few rows, as a decoder's, read each key once: packed
  // in short blocks these stay near, and the next ones come from memory meanwhile.
  constexpr int64_t kMostKeys = 512, kMostBesideFewRows = 128, kManyKeys = 256;
  const bool are_few = problem.rows <= plan.rows && problem.keys > kManyKeys;
  const int64_t blocks = divide_up(problem.keys, are_few ? kMostBesideFewRows : kMostKeys);
  plan.key_block = static_cast<int>(round_up(divide_up(problem.keys, blocks), width));
  // The scores of a block stay in L2 beside all of K and V: fewer blocks read those anew, which is worth 1 % more than
  // scores in L1.
  constexpr int64_t kScoreFloats = 24 << 10;
  plan.block_tiles = static_cast<int>(std::clamp<int64_t>(kScoreFloats / (plan.rows * plan.key_block), 1, 16));
  return plan;
}

// Panels from `first` on.
void pack_groups(const MatrixView& matrix, const PanelFormat& format, int64_t first, float* out) noexcept {
  pack_panels(matrix, format, first, format.panels(matrix.columns), 1, out);
}
void pack_groups(const MatrixView16& matrix, const PanelFormat& format, int64_t first, float* out) noexcept {
  pack_pairs(matrix, format, first, format.panels(matrix.columns), reinterpret_cast<uint16_t*>(out));
}

bool share_keys(const std::vector<AttentionOffsets>& offsets) {
  return std::adjacent_find(offsets.begin(), offsets.end(), [](const AttentionOffsets& a, const AttentionOffsets& b) {
           return a.k == b.k && a.v == b.v;
         }) != offsets.end();
}

}  // namespace

double AttentionProblem::flop() const {
  constexpr double kSoftmax = 14;  // of one score
  const double all = static_cast<double>(matrices) * static_cast<double>(rows) * static_cast<double>(keys);
  return all * (2.0 * static_cast<double>(size + value_size) + kSoftmax);
}

// One matrix of the batch, and the memory of the thread that works on it: packed groups of K and V, and what belongs to
// one block of rows.
template <class Element>
struct AttentionProduct<Element>::Matrix {
  const Element *q, *k, *v;
  Element* y;
  std::array<const float*, kMaxGemmInputs> inputs;
  const float* addend;
  float *packed_k, *packed_v, *scores, *tops, *sums, *factors, *gathered, *added;
};

// A block of rows against a block of keys.
template <class Element>
struct AttentionProduct<Element>::Block {
  Range tiles;
  int64_t first_row, rows;
  int64_t first_key, keys;
  Range packed;  // keys that are packed meanwhile, from the beginning of the memory for them
  Phase phase;
};

// Prefetches what is read next, a share beside each panel: rows far apart in memory, which the processor's own
// prefetchers do not foresee. Such are the next matrix's operands, heads that lie side by side, and inputs by row and
// key, of which a panel takes one line of each row; fetched row by row they arrive twice as fast.
template <class Element>
class AttentionProduct<Element>::Ahead {
 public:
  // `shares`: calls of fetch() until all is fetched.
  explicit Ahead(int64_t shares) : shares_(shares) {}
  template <class Number>
  void add(const Number* at, int64_t rows, int64_t columns, int64_t stride) {
    constexpr int64_t kBytes = sizeof(Number);
    streams_[count_++] = {reinterpret_cast<const char*>(at), rows, divide_up(columns * kBytes, kLineBytes),
                          stride * kBytes};
  }
  void fetch() {
    constexpr int kIntoL2 = 2;
    for (size_t i = 0; i < count_; ++i) {
      const Stream& stream = streams_[i];
      const int64_t lines = stream.rows * stream.lines, end = lines * std::min(done_ + 1, shares_) / shares_;
      int64_t line = lines * std::min(done_, shares_) / shares_;
      for (int64_t row = line / stream.lines; line < end; ++row) {
        const char* at = stream.at + row * stream.stride - row * stream.lines * kLineBytes;
        for (const int64_t next = std::min(end, (row + 1) * stream.lines); line < next; ++line)
          __builtin_prefetch(at + line * kLineBytes, 0, kIntoL2);
      }
    }
    ++done_;
  }

 private:
  struct Stream {
    const char* at;
    int64_t rows, lines, stride;
  };
  static constexpr size_t kStreams = std::max<size_t>(3, kMaxGemmInputs);
  std::array<Stream, kStreams> streams_ = {};
  size_t count_ = 0;
  int64_t shares_, done_ = 0;
};

template <class Element>
AttentionProduct<Element>::AttentionProduct(const AttentionProblem& problem, const AttentionStrides& strides,
                                            std::vector<AttentionOffsets> offsets)
    : problem_(problem), plan_(choose_plan(problem)), strides_(strides), offsets_(std::move(offsets)) {
  if (kIsBf16 && problem.isa != Isa::avx512_bf16) throw JitError("attention in bfloat16 needs AVX512-BF16");
  if (problem.size % kGroup != 0) throw JitError("attention in bfloat16 takes pairs");
  isa_ = kIsBf16 ? Isa::avx512_bf16 : has_avx512(problem.isa) ? Isa::avx512 : Isa::avx2;
  lanes_ = vector_lanes(isa_);
  format_ = {int64_t{plan_.vecs} * lanes_, lanes_};
  tiles_ = {problem.rows, divide_up(problem.rows, plan_.rows)};
  blocks_ = divide_up(tiles_.count, plan_.block_tiles);
  key_blocks_ = divide_up(problem.keys, plan_.key_block);
  packs_blocks_ = blocks_ == 1 && key_blocks_ > 1 && !share_keys(offsets_);
  packed_keys_ = packs_blocks_ ? plan_.key_block : problem.keys;
  // Rows a multiple of 4 KiB apart would share one set of L1.
  score_stride_ = round_up(std::min<int64_t>(problem.keys, plan_.key_block), kLineFloats) + kLineFloats;
  emit_kernels();
}

template <class Element>
std::string AttentionProduct<Element>::key() const {
  return fmt::format("attention {}x{} tiles {} keys {}{}", plan_.rows, plan_.vecs, plan_.block_tiles, plan_.key_block,
                     kIsBf16 ? " bf16" : "");
}

template <class Element>
GemmTilePlan AttentionProduct<Element>::tile_plan(int rows, int64_t columns, bool is_tail) const {
  GemmTilePlan tile;
  tile.isa = isa_;
  tile.bf16 = tile.widens = kIsBf16;
  tile.rows = rows;
  const int64_t last = columns - (format_.panels(columns) - 1) * format_.panel_columns;
  tile.vecs = is_tail ? static_cast<int>(divide_up(last, lanes_)) : plan_.vecs;
  tile.masked = is_tail && last % lanes_ != 0;
  return tile;
}

template <class Element>
GemmTilePlan AttentionProduct<Element>::mixed_plan(int rows, int phase, bool is_tail) const {
  GemmTilePlan tile = tile_plan(rows, problem_.value_size, is_tail);
  tile.accumulate = phase == kMiddle || phase == kLast;
  if (phase == kOnly || (phase == kLast && !gathers())) tile.epilogue = times_factor();
  if (phase == kOnly) tile.widens = false;
  return tile;
}

template <class Element>
void AttentionProduct<Element>::emit_kernels() {
  for (int shorter = 0; shorter < tiles_.heights(); ++shorter) {
    Height& height = heights_[static_cast<size_t>(shorter)];
    const int rows = tiles_.height - shorter;
    for (int tail = 0; tail < 2; ++tail) {
      if (tail == 0 ? problem_.keys >= format_.panel_columns : has_tail(problem_.keys)) {
        GemmTilePlan tile = tile_plan(rows, problem_.keys, tail == 1);
        tile.epilogue = problem_.scores;
        height.scores[tail] = gemm_tile(tile);
      }
      if (tail == 0 ? problem_.value_size < format_.panel_columns : !has_tail(problem_.value_size)) continue;
      for (int phase = 0; phase < kPhases; ++phase) {
        if ((phase == kOnly) != (key_blocks_ == 1) || (phase == kMiddle && key_blocks_ < 3)) continue;
        height.mixed[phase][tail] = gemm_tile(mixed_plan(rows, phase, tail == 1));
      }
    }
  }
  softmax_[0] = attention_softmax_kernel({isa_, false, kIsBf16});
  if (key_blocks_ > 1) softmax_[1] = attention_softmax_kernel({isa_, true, kIsBf16});
  if (problem_.summed_input) sums_.emplace(problem_.isa, problem_.run);
  const Isa turning = has_avx512(isa_) ? Isa::avx512 : isa_;
  if (problem_.k_by_rows)
    turn_ = transpose_kernel(plan_transpose(turning, format_.panel_columns, problem_.size / kGroup));
}

template <class Element>
int64_t AttentionProduct<Element>::block_rows() const {
  return round_up(int64_t{tiles_.height} * plan_.block_tiles, kLineFloats);
}

template <class Element>
int64_t AttentionProduct<Element>::gathered_stride() const {
  return gathers() ? round_up(problem_.value_size, kLineFloats) : 0;
}

template <class Element>
auto AttentionProduct<Element>::matrix_at(const Operands& operands, const AttentionOffsets& at) const -> Matrix {
  Matrix matrix{operands.q + at.q, operands.k + at.k, operands.v + at.v, operands.y + at.y};
  for (size_t i = 0; i < input_count(); ++i) matrix.inputs[i] = operands.inputs[i] + at.inputs[i];
  matrix.addend = problem_.summed_input ? operands.addend + at.addend : nullptr;
  matrix.packed_k = operands.scratch;
  matrix.packed_v = matrix.packed_k + format_.elements(problem_.size / kGroup, packed_keys_);
  matrix.scores = matrix.packed_v + format_.elements(divide_up(packed_keys_, kGroup), problem_.value_size);
  matrix.tops = matrix.scores + block_rows() * score_stride_;
  matrix.sums = matrix.tops + block_rows();
  matrix.factors = matrix.sums + block_rows();
  matrix.gathered = matrix.factors + block_rows();
  matrix.added = matrix.gathered + block_rows() * gathered_stride();
  return matrix;
}

template <class Element>
int64_t AttentionProduct<Element>::scratch_elements() const {
  const int64_t packed = format_.elements(problem_.size / kGroup, packed_keys_) +
                         format_.elements(divide_up(packed_keys_, kGroup), problem_.value_size);
  return round_up(packed + block_rows() * (score_stride_ + 3 + gathered_stride() + summed_stride()), kLineFloats);
}

// Groups of one key lie together where K is dense along `size`: pairs turn like floats.
template <class Element>
void AttentionProduct<Element>::pack(const Matrix& matrix, const Range& keys) const noexcept {
  const int64_t count = keys.end - keys.begin;
  const Element* first = matrix.k + keys.begin * (problem_.k_by_rows ? strides_.k : 1);
  MatrixViewOf<Element> k{first, problem_.size, count, strides_.k, 1};
  MatrixViewOf<Element> v{matrix.v + keys.begin * (problem_.v_by_rows ? strides_.v : 1), count, problem_.value_size,
                          strides_.v, 1};
  if (problem_.k_by_rows) std::swap(k.row_stride, k.column_stride);
  if (!problem_.v_by_rows) std::swap(v.row_stride, v.column_stride);
  const int64_t width = format_.panel_columns, whole = problem_.k_by_rows ? count / width : 0;
  const int64_t groups = problem_.size / kGroup;
  for (int64_t panel = 0; panel < whole; ++panel) {
    turn_(static_cast<const void*>(first + panel * width * strides_.k),
          static_cast<void*>(matrix.packed_k + panel * width * groups), strides_.k * kElementBytes, width * 4, width,
          groups);
  }
  pack_groups(k, format_, whole, matrix.packed_k + whole * width * groups);
  pack_groups(v, format_, 0, matrix.packed_v);
}

// The block's part of the input that is a sum.
template <class Element>
void AttentionProduct<Element>::add_up(const Matrix& matrix, const Block& block) const noexcept {
  const size_t input = *problem_.summed_input;
  sums_->make({matrix.inputs[input], strides_.inputs[input]}, {matrix.addend, strides_.addend},
              {block.first_row, block.first_row + block.rows}, {block.first_key, block.first_key + block.keys},
              {matrix.added, score_stride_});
}

template <class Element>
void AttentionProduct<Element>::score(const Matrix& matrix, const Block& block, Ahead& ahead,
                                      Ahead& inputs) const noexcept {
  const int64_t width = format_.panel_columns, last_panel = format_.panels(problem_.keys) - 1;
  GemmTileArgs args{};
  args.k = problem_.size / kGroup;
  args.a_stride_bytes = strides_.q * kElementBytes;
  args.c_stride_bytes = score_stride_ * 4;
  args.tail_lanes = problem_.keys % lanes_;
  for (int64_t key = block.first_key; key < block.first_key + block.keys; key += width) {
    ahead.fetch();
    inputs.fetch();
    const bool is_tail = key / width == last_panel && has_tail(problem_.keys);
    args.b = matrix.packed_k + (key - block.packed.begin) * args.k;
    for (int64_t tile = block.tiles.begin; tile < block.tiles.end; tile += args.tiles) {
      const int64_t row = tiles_.row_of(tile);
      args.tiles = tiles_.end_of_height(tile, block.tiles.end) - tile;
      args.a = reinterpret_cast<const float*>(matrix.q + row * strides_.q);
      args.c = matrix.scores + (row - block.first_row) * score_stride_ + (key - block.first_key);
      for (size_t i = 0; i < input_count(); ++i) {
        const bool by_column = problem_.scores->inputs[i] == GemmInputAccess::columns;
        if (i == problem_.summed_input) {
          args.inputs[i] = matrix.added + (row - block.first_row) * score_stride_ + (key - block.first_key);
          args.input_stride_bytes[i] = score_stride_ * 4;
          continue;
        }
        args.inputs[i] = matrix.inputs[i] + row * strides_.inputs[i] + (by_column ? key : 0);
        args.input_stride_bytes[i] = strides_.inputs[i] * 4;
      }
      heights_[tiles_.is_shorter(tile)].scores[is_tail].entry()(&args);
    }
  }
}

// Where a row's products with V add up: in the result, unless they would be rounded there.
template <class Element>
float* AttentionProduct<Element>::sums_at(const Matrix& matrix, const Block& block, int64_t row) const noexcept {
  if (gathers()) return matrix.gathered + (row - block.first_row) * gathered_stride();
  return reinterpret_cast<float*>(matrix.y + row * strides_.y);
}

template <class Element>
void AttentionProduct<Element>::mix(const Matrix& matrix, const Block& block, Ahead& ahead) const noexcept {
  const int64_t width = format_.panel_columns, panels = format_.panels(problem_.value_size);
  const int64_t first_group = (block.first_key - block.packed.begin) / kGroup;  // blocks begin at whole panels
  const int64_t groups = divide_up(block.packed.end - block.packed.begin, kGroup);
  GemmTileArgs args{};
  args.k = divide_up(block.keys, kGroup);
  args.a_stride_bytes = score_stride_ * 4;
  args.c_stride_bytes = gathers() ? gathered_stride() * 4 : strides_.y * kElementBytes;
  args.tail_lanes = problem_.value_size % lanes_;
  args.input_stride_bytes[0] = 4;
  for (int64_t panel = 0; panel < panels; ++panel) {
    ahead.fetch();
    const bool is_tail = panel == panels - 1 && has_tail(problem_.value_size);
    const int64_t column = panel * width;
    args.b = matrix.packed_v + column * groups + first_group * format_.width_of(panel, problem_.value_size);
    for (int64_t tile = block.tiles.begin; tile < block.tiles.end; tile += args.tiles) {
      const int64_t row = tiles_.row_of(tile);
      args.tiles = tiles_.end_of_height(tile, block.tiles.end) - tile;
      args.a = matrix.scores + (row - block.first_row) * score_stride_;
      // A float takes the place of as many elements of the result as a group has.
      args.c = sums_at(matrix, block, row) + (gathers() ? column : column / kGroup);
      args.inputs[0] = matrix.sums + (row - block.first_row);
      heights_[tiles_.is_shorter(tile)].mixed[block.phase][is_tail].entry()(&args);
    }
  }
}

// What earlier blocks of keys gave, by the maxima of now.
template <class Element>
void AttentionProduct<Element>::rescale(const Matrix& matrix, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    float* sums = sums_at(matrix, block, block.first_row + row);
    for (int64_t j = 0; j < problem_.value_size; ++j) sums[j] *= matrix.factors[row];
  }
}

// Sums become factors; a row without any key gets 0 where that is asked for.
template <class Element>
void AttentionProduct<Element>::finish_sums(const Matrix& matrix, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    const bool is_empty = !(matrix.sums[row] > 0);
    matrix.sums[row] = is_empty && problem_.zeroes_empty ? 0.f : 1 / matrix.sums[row];
  }
}

// Rounds what was gathered; rows without any key become 0 where that is asked for.
template <class Element>
void AttentionProduct<Element>::finish_rows(const Matrix& matrix, const Block& block) const noexcept {
  for (int64_t row = 0; row < block.rows; ++row) {
    Element* y = matrix.y + (block.first_row + row) * strides_.y;
    const float factor = matrix.sums[row];
    if (problem_.zeroes_empty && factor == 0) {
      std::fill(y, y + problem_.value_size, Element{0});
    } else if constexpr (kIsBf16) {
      const float* gathered = matrix.gathered + row * gathered_stride();
      for (int64_t j = 0; gathers() && j < problem_.value_size; ++j) y[j] = float_to_bfloat(gathered[j] * factor);
    }
  }
}

template <class Element>
auto AttentionProduct<Element>::block_at(int64_t number, int64_t part) const -> Block {
  Block block{};
  block.tiles = {tiles_.count * number / blocks_, tiles_.count * (number + 1) / blocks_};
  block.first_row = tiles_.row_of(block.tiles.begin);
  block.rows = tiles_.row_of(block.tiles.end) - block.first_row;
  block.first_key = part * plan_.key_block;
  block.keys = std::min<int64_t>(plan_.key_block, problem_.keys - block.first_key);
  block.packed = {0, problem_.keys};
  if (packs_blocks_) block.packed = {block.first_key, block.first_key + block.keys};
  const bool is_last = part + 1 == key_blocks_;
  block.phase = key_blocks_ == 1 ? kOnly : part == 0 ? kFirst : is_last ? kLast : kMiddle;
  return block;
}

// What the scores of the block, which may be none, read of inputs by row and key.
template <class Element>
auto AttentionProduct<Element>::inputs_of(const Matrix& matrix, const Block& block, int64_t shares) const -> Ahead {
  Ahead inputs(shares);
  for (size_t i = 0; i < input_count(); ++i) {
    const bool is_far = problem_.scores->inputs[i] == GemmInputAccess::columns && strides_.inputs[i] >= block.keys;
    if (!is_far || i == problem_.summed_input || block.rows == 0) continue;
    inputs.add(matrix.inputs[i] + block.first_row * strides_.inputs[i] + block.first_key, block.rows, block.keys,
               strides_.inputs[i]);
  }
  return inputs;
}

template <class Element>
void AttentionProduct<Element>::add_keys(Ahead& ahead, const Matrix& matrix, const Range& keys) const noexcept {
  const auto add = [&](const Element* at, bool by_rows, int64_t columns, int64_t stride) {
    const int64_t count = keys.end - keys.begin;
    ahead.add(at + keys.begin * (by_rows ? stride : 1), by_rows ? count : columns, by_rows ? columns : count, stride);
  };
  add(matrix.k, problem_.k_by_rows, problem_.size, strides_.k);
  add(matrix.v, problem_.v_by_rows, problem_.value_size, strides_.v);
}

template <class Element>
void AttentionProduct<Element>::run_rows(const Matrix& matrix, const Matrix* next_matrix, int64_t number,
                                         Ahead& ahead_of_matrix) const noexcept {
  for (int64_t part = 0; part < key_blocks_; ++part) {
    const bool is_last = part + 1 == key_blocks_;
    const Block block = block_at(number, part);
    Ahead next_keys(format_.panels(block.keys) + format_.panels(problem_.value_size));
    if (packs_blocks_) {
      pack(matrix, block.packed);
      const Matrix* read = is_last ? next_matrix : &matrix;
      if (read != nullptr) add_keys(next_keys, *read, block_at(number, is_last ? 0 : part + 1).packed);
    }
    Ahead& ahead = packs_blocks_ ? next_keys : ahead_of_matrix;
    const bool has_next = !is_last || number + 1 < blocks_;
    const Block next = !has_next ? Block{} : is_last ? block_at(number + 1, 0) : block_at(number, part + 1);
    if (problem_.summed_input) add_up(matrix, block);
    Ahead inputs = inputs_of(matrix, next, format_.panels(block.keys));
    score(matrix, block, ahead, inputs);
    const AttentionSoftmaxArgs args{matrix.scores, block.rows,  block.keys,    score_stride_ * 4,
                                    matrix.tops,   matrix.sums, matrix.factors};
    softmax_[part > 0].entry()(&args);
    if (part > 0) rescale(matrix, block);
    if (is_last) finish_sums(matrix, block);
    mix(matrix, block, ahead);
  }
  if (problem_.zeroes_empty || gathers()) finish_rows(matrix, block_at(number, key_blocks_ - 1));
}

template <class Element>
void AttentionProduct<Element>::run(const Operands& operands, int share, int shares) const noexcept {
  const Range mine = split_evenly(static_cast<int64_t>(offsets_.size()) * blocks_, share, shares);
  const AttentionOffsets* packed = nullptr;
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t number = item / blocks_, end = std::min<int64_t>(mine.end, (number + 1) * blocks_);
    const AttentionOffsets& offsets = offsets_[static_cast<size_t>(number)];
    const Matrix matrix = matrix_at(operands, offsets);
    // Heads that share keys follow each other.
    const bool has_packed = packed != nullptr && packed->k == offsets.k && packed->v == offsets.v;
    if (!has_packed && !packs_blocks_) pack(matrix, {0, problem_.keys});
    packed = &offsets;
    const int64_t panels = format_.panels(problem_.keys) + key_blocks_ * format_.panels(problem_.value_size);
    Ahead ahead((end - item) * panels);
    std::optional<Matrix> next;
    if (end < mine.end) {
      next = matrix_at(operands, offsets_[static_cast<size_t>(number + 1)]);
      ahead.add(next->q, problem_.rows, problem_.size, strides_.q);
      add_keys(ahead, *next, {0, problem_.keys});
    }
    for (; item < end; ++item) run_rows(matrix, next ? &*next : nullptr, item - number * blocks_, ahead);
  }
}

template class AttentionProduct<float>;
template class AttentionProduct<uint16_t>;

}  // namespace lathe
