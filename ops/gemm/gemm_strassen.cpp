#include "ops/gemm/gemm_strassen.h"

#include <algorithm>
#include <cmath>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int kFinishRows = 4;

StrassenShape shape_of(const GemmProblem& problem, const GemmPlan& plan) {
  StrassenShape shape;
  shape.isa = problem.isa;
  shape.scheme = &scheme_of(plan.fast);
  shape.m = problem.m;
  shape.n = problem.n;
  shape.k = problem.k;
  shape.k_block = plan.k_block;
  shape.rows = plan.rows;
  shape.vecs = plan.vecs;
  shape.embed_broadcast = plan.embed_broadcast;
  shape.scales_rows = true;
  shape.aside = true;  // rows of C lie far apart, in pages and cache sets of their own, and are out of the cache
  return shape;
}

// Other schemes add later blocks of k to what was gathered aside: parts only keep their sums near (768 columns and k
// 16,384, Zen 5: 128 rows take 3 to 5 % less, 1,024 11 to 14 %).
int64_t part_count(const StrassenShape& shape) {
  if (shape.scheme->takes_sums()) return parts_of_k(shape);
  StrassenShape whole = shape;
  whole.k_block = kLongestSums;
  return std::max<int64_t>(1, parts_of_k(whole));
}

// The epilogue of what was gathered: brought back to its size, it is added to what earlier parts of k have left in C.
// Further inputs: the size, one for all columns, and C.
GemmEpilogue sized(const std::optional<GemmEpilogue>& epilogue, bool adds_c) {
  Expression product;
  product.inputs = {DType::f32, DType::f32};
  const int gathered = product.add({.op = ExprOp::input, .a = 0}), size = product.add({.op = ExprOp::input, .a = 1});
  const int brought_back = product.add({.op = ExprOp::mul, .a = gathered, .b = size});
  if (adds_c) {
    product.inputs.push_back(DType::f32);
    product.add({.op = ExprOp::add, .a = brought_back, .b = product.add({.op = ExprOp::input, .a = 2})});
  }
  GemmEpilogue result;
  result.expression = epilogue ? extend_input(epilogue->expression, 0, product) : product;
  if (epilogue) result.inputs = epilogue->inputs;
  result.inputs.push_back(GemmInputAccess::uniform);
  if (adds_c) result.inputs.push_back(GemmInputAccess::columns);
  return result;
}

// Each thread has rows of its own, or all have all of them.
int64_t pieces_together(const GemmProblem& problem, const GemmPlan& plan) {
  return plan.split == GemmSplit::rows ? std::clamp<int64_t>(problem.m / 2, 1, problem.threads) : 1;
}

int wave_count(const GemmProblem& problem, const GemmPlan& plan, int64_t together) {
  const int64_t most = std::max<int64_t>(1, problem.m / 2 / together);  // of two rows or more
  return static_cast<int>(std::min(most, divide_up(divide_up(problem.m, together), int64_t{plan.row_block})));
}

// Pieces have an even number of rows if they can: an odd one is a row that is computed twice.
int64_t rows_at_once(const GemmProblem& problem) { return problem.m % 2 == 0 ? 2 : 1; }

int64_t most_rows(const GemmProblem& problem, int64_t pieces) {
  return divide_up(problem.m / rows_at_once(problem), pieces) * rows_at_once(problem);
}

StrassenShape shape_of_part(const GemmProblem& problem, const GemmPlan& plan, int64_t rows) {
  StrassenShape shape = shape_of(problem, plan);
  shape.m = rows;
  shape.k /= part_count(shape);
  return shape;
}

}  // namespace

bool can_use_strassen(const GemmProblem& problem, const GemmPlan& plan) {
  return problem.allows_strassen && problem.batches == 1 && problem.b == GemmOperandB::packed &&
         (!problem.epilogue || problem.epilogue->inputs.size() + 2 <= size_t{kMaxGemmInputs}) && plan.row_block > 1 &&
         has_quadrants(shape_of(problem, plan));
}

StrassenProduct::StrassenProduct(const GemmProblem& problem, const GemmPlan& plan)
    : problem_(problem),
      plan_(plan),
      parts_(static_cast<int>(part_count(shape_of(problem, plan)))),
      together_(pieces_together(problem, plan)),
      waves_(wave_count(problem, plan, together_)),
      core_(shape_of_part(problem, plan, most_rows(problem, together_ * waves_))) {
  if (!can_use_strassen(problem, plan)) throw JitError("not possible here: " + plan.key());
  const int64_t unit = rows_at_once(problem), fewest = problem.m / unit / (together_ * waves_) * unit;
  if (fewest != core_.shape().m) low_.emplace(shape_of_part(problem, plan, fewest));
  emit_finish();
}

void StrassenProduct::emit_finish() {
  GemmTilePlan tile;
  tile.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  tile.vecs = plan_.vecs;
  tile.starts_at_a = true;
  for (int part = 0; part < parts_; ++part) {
    const bool is_last = part + 1 == parts_;
    tile.epilogue = sized(is_last ? problem_.epilogue : std::nullopt, part > 0);
    Finish finish;
    tile.rows = 1;
    finish.row = gemm_tile(tile);
    tile.rows = kFinishRows;
    finish.rows = gemm_tile(tile);
    finish_.push_back(finish);
  }
}

void StrassenProduct::pack(const MatrixView& matrix, float scale, float* packed) const {
  MatrixView view = matrix;
  view.rows = core_.shape().k;
  for (int part = 0; part < parts_; ++part) {
    core_.pack(view, scale, packed + part * core_.packed_elements());
    view.data += view.rows * matrix.row_stride;
  }
}

int64_t StrassenProduct::sums_elements() const {
  constexpr int64_t kLineFloats = 16;
  return round_up(core_.sums_elements(), kLineFloats);
}

// A thread's pieces of all waves are neighbours: it finds rows that it wrote in the step before.
StrassenProduct::Piece StrassenProduct::piece_of(int wave, long number) const {
  const int64_t unit = rows_at_once(problem_);
  const Range units = split_evenly(static_cast<long>(problem_.m / unit), static_cast<int>(number) * waves_ + wave,
                                   static_cast<int>(together_) * waves_);
  const bool is_low = (units.end - units.begin) * unit != core_.shape().m;
  return {is_low ? *low_ : core_, units.begin * unit};
}

// A share has one or several of `count`, or a group of the work of one.
template <class Body>
void StrassenProduct::for_items(long count, int share, int shares, Body body) {
  const int groups = std::max(1, shares / static_cast<int>(count));
  const Range mine = split_evenly(count * groups, share, shares);
  for (long item = mine.begin; item < mine.end; ++item)
    body(Item{item / groups, static_cast<int>(item % groups), groups}, item + 1 == mine.end);
}

int64_t StrassenProduct::owners(bool are_far) const {
  return plan_.split == GemmSplit::columns && makes_own_sums(problem_, are_far) ? problem_.threads : together_;
}

void StrassenProduct::run(int round, const GemmOperands& operands, const Sums& sums, int share, int shares, int thread,
                          bool are_far) const noexcept {
  const Turn turn{round / 2 / parts_, round / 2 % parts_, owners(are_far)};
  round % 2 == 0 ? sum(turn, operands, sums, share, shares) : multiply(turn, operands, sums, share, shares, thread);
}

void StrassenProduct::sum(Turn turn, const GemmOperands& operands, const Sums& sums, int share,
                          int shares) const noexcept {
  const StrassenMatrix layout{operands.a_stride, vector_lanes(problem_.isa)};
  for_items(static_cast<long>(turn.owners), share, shares, [&](const Item& item, bool) {
    const Piece piece = piece_of(turn.wave, together_ > 1 ? item.piece : 0);
    const float* a = operands.a + piece.row * operands.a_stride + turn.part * core_.shape().k;
    piece.core.sum(a, layout, sums.first + item.piece * sums.stride, item.group, item.groups);
  });
}

void StrassenProduct::multiply(Turn turn, const GemmOperands& operands, const Sums& sums, int share, int shares,
                               int thread) const noexcept {
  const bool is_last = turn.wave + 1 == waves_ && turn.part + 1 == parts_;
  for_items(static_cast<long>(together_), share, shares, [&](const Item& item, bool is_last_item) {
    const Piece piece = piece_of(turn.wave, item.piece);
    GemmOperands own = operands;
    own.c += piece.row * operands.c_stride;
    for (size_t i = 0; problem_.epilogue && i < problem_.epilogue->inputs.size(); ++i)
      own.inputs[i] += piece.row * operands.input_strides[i];
    if (!is_last || !is_last_item) own.next_weights = nullptr;
    const int64_t owner = together_ > 1 ? item.piece : turn.owners > 1 ? thread : 0;
    multiply_piece(turn.part, own, piece.core, sums.first + owner * sums.stride, item);
  });
}

void StrassenProduct::multiply_piece(int part, const GemmOperands& operands, const Strassen& core, const float* sums,
                                     const Item& item) const noexcept {
  Strassen::Operands bound;
  bound.sums = sums;
  bound.b = part_of(operands.b, part);
  bound.c = operands.c;
  bound.c_layout = {operands.c_stride, vector_lanes(problem_.isa)};
  bound.next_weights = operands.next_weights;
  bound.aside = operands.scratch;
  core.run(bound, item.group, item.groups, [&](int64_t row, int64_t rows, int64_t column, int64_t aside_row) {
    const int64_t width = core.shape().width(), columns = core.shape().scheme->columns;
    const float* aside = operands.scratch + aside_row * core.aside_stride();
    for (int64_t i = 0; i < columns; ++i)
      finish(part, operands, core.row_sizes(sums), {row, row + rows}, column + i * (problem_.n / columns),
             aside + i * width);
  });
}

void StrassenProduct::finish(int part, const GemmOperands& operands, const float* sizes, Range rows, int64_t column,
                             const float* aside) const noexcept {
  const Finish& kernels = finish_[static_cast<size_t>(part)];
  GemmTileArgs args = {};
  args.c_stride_bytes = operands.c_stride * 4;
  args.a_stride_bytes = core_.aside_stride() * 4;
  args.b = operands.b;  // k is 0: not read
  const size_t own = part + 1 == parts_ && problem_.epilogue ? problem_.epilogue->inputs.size() : 0;
  args.input_stride_bytes[own] = 4;
  args.input_stride_bytes[own + 1] = args.c_stride_bytes;
  int64_t row = rows.begin;
  for (const int height : {kFinishRows, 1}) {
    args.tiles = (rows.end - row) / height;
    if (args.tiles == 0) continue;
    args.a = aside;
    args.c = operands.c + row * operands.c_stride + column;
    for (size_t i = 0; i < own; ++i) {
      const bool by_column = problem_.epilogue->inputs[i] == GemmInputAccess::columns;
      args.inputs[i] = operands.inputs[i] + row * operands.input_strides[i] + (by_column ? column : 0);
      args.input_stride_bytes[i] = operands.input_strides[i] * 4;
    }
    args.inputs[own] = sizes + row;
    args.inputs[own + 1] = args.c;
    (height == 1 ? kernels.row : kernels.rows).entry()(&args);
    aside += args.tiles * height * core_.aside_stride();
    row += args.tiles * height;
  }
}

bool has_even_columns(const MatrixView& b) {
  constexpr float kMost = 256;  // costs the smaller column 8 of its bits
  std::vector<float> sizes(static_cast<size_t>(b.columns));
  const auto look_at = [&](int64_t row, int64_t column) {
    float& size = sizes[static_cast<size_t>(column)];
    size = std::max(size, std::abs(b.data[row * b.row_stride + column * b.column_stride]));
  };
  if (b.column_stride == 1) {
    for (int64_t row = 0; row < b.rows; ++row)
      for (int64_t column = 0; column < b.columns; ++column) look_at(row, column);
  } else {
    for (int64_t column = 0; column < b.columns; ++column)
      for (int64_t row = 0; row < b.rows; ++row) look_at(row, column);
  }
  const auto [least, largest] = std::minmax_element(sizes.begin(), sizes.end());
  return *least * kMost >= *largest;
}

}  // namespace lathe
