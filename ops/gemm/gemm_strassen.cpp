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
  shape.row_block = plan.row_block;
  shape.k_block = plan.k_block;
  shape.rows = plan.rows;
  shape.vecs = plan.vecs;
  shape.embed_broadcast = plan.embed_broadcast;
  shape.scales_rows = true;
  shape.aside = true;  // rows of C lie far apart, in pages and cache sets of their own, and are out of the cache
  return shape;
}

// Other schemes add later blocks of k to what was gathered aside.
int64_t part_count(const StrassenShape& shape) { return shape.scheme->takes_sums() ? parts_of_k(shape) : 1; }

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

int64_t piece_count(const GemmProblem& problem, const GemmPlan& plan) {
  return plan.split == GemmSplit::rows ? std::clamp<int64_t>(problem.m / 2, 1, problem.threads) : 1;
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
         (!problem.epilogue || problem.epilogue->inputs.size() + 2 <= size_t{kMaxGemmInputs}) &&
         has_quadrants(shape_of(problem, plan));
}

StrassenProduct::StrassenProduct(const GemmProblem& problem, const GemmPlan& plan)
    : problem_(problem),
      plan_(plan),
      parts_(static_cast<int>(part_count(shape_of(problem, plan)))),
      pieces_(piece_count(problem, plan)),
      core_(shape_of_part(problem, plan, most_rows(problem, pieces_))) {
  if (!can_use_strassen(problem, plan)) throw JitError("not possible here: " + plan.key());
  const int64_t unit = rows_at_once(problem), fewest = problem.m / unit / pieces_ * unit;
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

int64_t StrassenProduct::sums_of_piece() const {
  constexpr int64_t kLineFloats = 16;
  return divide_up(core_.sums_elements(), kLineFloats) * kLineFloats;
}

StrassenProduct::Piece StrassenProduct::piece_of(long number) const {
  const int64_t unit = rows_at_once(problem_);
  const Range units =
      split_evenly(static_cast<long>(problem_.m / unit), static_cast<int>(number), static_cast<int>(pieces_));
  const bool is_low = (units.end - units.begin) * unit != core_.shape().m;
  return {is_low ? *low_ : core_, units.begin * unit};
}

void StrassenProduct::sum(int part, const GemmOperands& operands, const Sums& sums, int share,
                          int shares) const noexcept {
  const float* a = operands.a + part * core_.shape().k;
  const StrassenMatrix layout{operands.a_stride, vector_lanes(problem_.isa)};
  if (pieces_ == 1) return core_.sum(a, layout, sums.first, share, shares);
  const Range mine = split_evenly(static_cast<long>(pieces_), share, shares);
  for (long number = mine.begin; number < mine.end; ++number) {
    const Piece piece = piece_of(number);
    piece.core.sum(a + piece.row * operands.a_stride, layout, sums.first + number * sums.stride, 0, 1);
  }
}

// Shares are pieces, or groups of columns of them.
void StrassenProduct::run(int part, const GemmOperands& operands, const Sums& sums, int share,
                          int shares) const noexcept {
  const int groups = std::max(1, shares / static_cast<int>(pieces_));
  const Range mine = split_evenly(static_cast<long>(pieces_) * groups, share, shares);
  for (long item = mine.begin; item < mine.end; ++item) {
    const long number = item / groups;
    const Piece piece = piece_of(number);
    GemmOperands own = operands;
    own.c += piece.row * operands.c_stride;
    for (size_t i = 0; problem_.epilogue && i < problem_.epilogue->inputs.size(); ++i)
      own.inputs[i] += piece.row * operands.input_strides[i];
    if (item + 1 < mine.end) own.next_weights = nullptr;
    run_piece(part, own, piece.core, sums.first + number * sums.stride, static_cast<int>(item % groups), groups);
  }
}

void StrassenProduct::run_piece(int part, const GemmOperands& operands, const Strassen& core, const float* sums,
                                int share, int shares) const noexcept {
  Strassen::Operands bound;
  bound.sums = sums;
  bound.b = packed_part(operands.b, part);
  bound.c = operands.c;
  bound.c_layout = {operands.c_stride, vector_lanes(problem_.isa)};
  bound.next_weights = operands.next_weights;
  bound.aside = operands.scratch;
  core.run(bound, share, shares, [&](int64_t row, int64_t rows, int64_t column, int64_t aside_row) {
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
