#include "ops/gemm_strassen.h"

namespace lathe {
namespace {

constexpr int kFinishRows = 4;

StrassenShape shape_of(const GemmProblem& problem, const GemmPlan& plan) {
  StrassenShape shape;
  shape.isa = problem.isa;
  shape.scheme = plan.fast == FastProduct::hopcroft_kerr ? &kHopcroftKerr233 : &kStrassen222;
  shape.m = problem.m;
  shape.n = problem.n;
  shape.k = problem.k;
  shape.row_block = plan.row_block;
  shape.k_block = plan.k_block;
  shape.rows = plan.rows;
  shape.vecs = plan.vecs;
  shape.embed_broadcast = plan.embed_broadcast;
  shape.aside = true;  // rows of C lie far apart, in pages and cache sets of their own, and are out of the cache
  return shape;
}

}  // namespace

bool can_use_strassen(const GemmProblem& problem, const GemmPlan& plan) {
  return problem.allows_strassen && problem.batches == 1 && problem.b == GemmOperandB::packed &&
         has_quadrants(shape_of(problem, plan));
}

StrassenProduct::StrassenProduct(const GemmProblem& problem, const GemmPlan& plan)
    : problem_(problem), plan_(plan), core_(shape_of(problem, plan)) {
  if (!can_use_strassen(problem, plan)) throw JitError("not possible here: " + plan.key());
  GemmTilePlan tile;
  tile.isa = has_avx512(problem.isa) ? Isa::avx512 : Isa::avx2;
  tile.vecs = plan.vecs;
  tile.starts_at_a = true;
  tile.epilogue = problem.epilogue;
  finish_row_ = gemm_tile(tile);
  tile.rows = kFinishRows;
  finish_rows_ = gemm_tile(tile);
}

void StrassenProduct::sum(const GemmOperands& operands, float* sums, int share, int shares) const noexcept {
  core_.sum(operands.a, {operands.a_stride, vector_lanes(problem_.isa)}, sums, share, shares);
}

void StrassenProduct::run(const GemmOperands& operands, const float* sums, int share, int shares) const noexcept {
  Strassen::Operands bound;
  bound.a = operands.a;
  bound.sums = sums;
  bound.b = operands.b;
  bound.c = operands.c;
  bound.a_layout = {operands.a_stride, vector_lanes(problem_.isa)};
  bound.c_layout = {operands.c_stride, vector_lanes(problem_.isa)};
  bound.next_weights = operands.next_weights;
  bound.aside = operands.scratch;
  core_.run(bound, share, shares, [&](int64_t row, int64_t rows, int64_t column, int64_t aside_row) {
    const int64_t width = core_.shape().width(), columns = core_.shape().scheme->columns;
    const float* aside = operands.scratch + aside_row * core_.aside_stride();
    for (int64_t i = 0; i < columns; ++i)
      finish(operands, row, rows, column + i * (problem_.n / columns), aside + i * width);
  });
}

void StrassenProduct::finish(const GemmOperands& operands, int64_t row, int64_t rows, int64_t column,
                             const float* aside) const noexcept {
  GemmTileArgs args = {};
  args.c_stride_bytes = operands.c_stride * 4;
  args.a_stride_bytes = core_.aside_stride() * 4;
  args.b = operands.b;  // k is 0: not read
  const size_t input_count = problem_.epilogue ? problem_.epilogue->inputs.size() : 0;
  for (const int height : {kFinishRows, 1}) {
    args.tiles = rows / height;
    if (args.tiles == 0) continue;
    args.a = aside;
    args.c = operands.c + row * operands.c_stride + column;
    for (size_t i = 0; i < input_count; ++i) {
      const bool by_column = problem_.epilogue->inputs[i] == GemmInputAccess::columns;
      args.inputs[i] = operands.inputs[i] + row * operands.input_strides[i] + (by_column ? column : 0);
      args.input_stride_bytes[i] = operands.input_strides[i] * 4;
    }
    (height == 1 ? finish_row_ : finish_rows_).entry()(&args);
    aside += args.tiles * height * core_.aside_stride();
    row += args.tiles * height;
    rows -= args.tiles * height;
  }
}

}  // namespace lathe
