#include "ops/gemm/dot_product.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

int most_rows(Isa isa, int64_t columns) { return static_cast<int>(vector_lanes(isa) / columns); }

RowDotsAccess access_of(int64_t row_stride, int64_t column_stride, int64_t columns, bool is_input) {
  if (columns == 1 ? row_stride == 1 : row_stride == columns && column_stride == 1) return RowDotsAccess::dense;
  return is_input && row_stride == 0 ? RowDotsAccess::repeated : RowDotsAccess::strided;
}

}  // namespace

bool DotProblem::is_valid() const {
  return rows >= 1 && columns >= 1 && columns <= RowDotsPlan::most_columns(isa) && k >= 1 &&
         input_strides.size() <= static_cast<size_t>(kMaxGemmInputs);
}

DotProduct::DotProduct(DotProblem problem, bool is_packed, std::vector<DotOffsets> offsets)
    : problem_(std::move(problem)), offsets_(std::move(offsets)) {
  if (!problem_.is_valid()) throw JitError("no product of few columns");
  if (offsets_.empty()) offsets_.resize(1);
  const bool lies_in_order =
      problem_.columns == 1 && problem_.short_k_stride == 1 && problem_.k % vector_lanes(problem_.isa) == 0;
  copies_ = !is_packed && !lies_in_order;
  tiles_ = {problem_.rows, divide_up(problem_.rows, most_rows(problem_.isa, problem_.columns))};
  tall_ = emit(tiles_.height);
  if (tiles_.heights() == 2) low_ = emit(tiles_.height - 1);
}

DotProduct::Height DotProduct::emit(int rows) const {
  RowDotsPlan plan;
  plan.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  plan.rows = rows;
  plan.columns = static_cast<int>(problem_.columns);
  plan.c = access_of(problem_.c_row, problem_.c_column, problem_.columns, false);
  plan.epilogue = problem_.epilogue;
  for (const auto& [row, column] : problem_.input_strides) {
    plan.inputs.push_back(access_of(row, column, problem_.columns, true));
  }
  return {row_dots(plan), plan.key()};
}

int64_t DotProduct::packed_elements() const {
  const int64_t lanes = vector_lanes(problem_.isa);
  return divide_up(problem_.k, lanes) * lanes * problem_.columns;
}

int64_t DotProduct::scratch_elements() const { return copies_ ? packed_elements() : 0; }

void DotProduct::pack(const float* from, float scale, float* to) const noexcept {
  const int64_t lanes = vector_lanes(problem_.isa), k_stride = problem_.short_k_stride;
  for (int64_t k = 0; k < problem_.k; k += lanes) {
    const int64_t count = std::min(lanes, problem_.k - k);
    for (int64_t column = 0; column < problem_.columns; ++column, to += lanes) {
      const float* values = from + k * k_stride + column * problem_.short_column_stride;
      if (k_stride == 1) {
        for (int64_t i = 0; i < count; ++i) to[i] = values[i] * scale;
      } else {
        for (int64_t i = 0; i < count; ++i) to[i] = values[i * k_stride] * scale;
      }
      std::fill(to + count, to + lanes, 0.0F);
    }
  }
}

void DotProduct::run(const DotOperands& operands, int share, int shares) const noexcept {
  const auto batches = static_cast<int64_t>(offsets_.size());
  const Range mine = split_evenly(batches * tiles_.count, share, shares);
  const float* copied = nullptr;
  for (int64_t tile = mine.begin; tile < mine.end;) {
    const int64_t batch = tile / tiles_.count, first = batch * tiles_.count;
    const int64_t end = std::min<int64_t>(mine.end, first + tiles_.count);
    const DotOffsets& at = offsets_[static_cast<size_t>(batch)];
    const float* packed = operands.of_short + at.of_short;
    if (copies_) {
      if (packed != copied) pack(packed, 1, operands.scratch);
      copied = packed;
      packed = operands.scratch;
    }
    run_tiles(operands, at, packed, {tile - first, end - first});
    tile = end;
  }
}

void DotProduct::run_tiles(const DotOperands& operands, const DotOffsets& at, const float* packed,
                           Range tiles) const noexcept {
  RowDotsArgs args;
  args.b = packed;
  args.k = problem_.k;
  args.a_stride_bytes = problem_.long_stride * 4;
  args.c_row_bytes = problem_.c_row * 4;
  args.c_column_bytes = problem_.c_column * 4;
  for (size_t i = 0; i < problem_.input_strides.size(); ++i) {
    args.input_row_bytes[i] = problem_.input_strides[i][0] * 4;
    args.input_column_bytes[i] = problem_.input_strides[i][1] * 4;
  }
  for (int64_t tile = tiles.begin; tile < tiles.end;) {
    const int64_t row = tiles_.row_of(tile), end = tiles_.end_of_height(tile, tiles.end);
    args.tiles = end - tile;
    args.a = operands.of_long + at.of_long + row * problem_.long_stride;
    args.c = operands.c + at.c + row * problem_.c_row;
    for (size_t i = 0; i < problem_.input_strides.size(); ++i) {
      args.inputs[i] = operands.inputs[i] + at.inputs[i] + row * problem_.input_strides[i][0];
    }
    (tiles_.is_shorter(tile) ? low_ : tall_).kernel(&args);
    tile = end;
  }
}

double dot_product_cycles(Isa isa, int64_t rows, int64_t columns, int64_t k) {
  if (columns < 1 || columns > RowDotsPlan::most_columns(isa)) return std::numeric_limits<double>::infinity();
  const int64_t height = most_rows(isa, columns), tiles = divide_up(rows, height);
  // Beside the products: adding up lanes takes three instructions for each output, what follows about ten.
  const double outputs = static_cast<double>(std::min(rows, height) * columns);
  const auto steps = static_cast<double>(divide_up(k, int64_t{vector_lanes(isa)}));
  return static_cast<double>(tiles) * (steps * std::max(outputs, 4.0) + 3 * outputs + 20);
}

}  // namespace lathe
