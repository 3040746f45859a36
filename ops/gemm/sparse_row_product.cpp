#include "ops/gemm/sparse_row_product.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/gemm/bfp20_pack.h"
#include "ops/gemm/largest_elements.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// A row that is left out shall be long: memory is fetched ahead of what is asked for, and pages are opened. Sums of so
// many columns stay in L1.
constexpr int64_t kStripColumns = 4096;
// Of the largest in their column; smaller ones, in a group of a row that has no others, are zeros.
constexpr float kLeastOfColumn = 0x1p-40F;
constexpr int64_t kLongestSum = 1024;

// One group of one row, of elements that are within [-1, 1]; its scale.
float write_group(const float* row, int64_t lanes, float* out) {
  constexpr int kMostLanes = 16;
  int32_t codes[SparseRow::kVecs * kMostLanes];
  const int64_t columns = SparseRow::kVecs * lanes;
  float largest = 0;
  for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(row[c]));
  const bool counts = largest >= kLeastOfColumn;
  constexpr auto kLargestCode = static_cast<float>(Bfp20::kLargestCode);
  const float units = counts ? kLargestCode / largest : 0;
  for (int64_t c = 0; c < columns; ++c) codes[c] = bfp20_code(row[c] * units);
  write_bfp20_group(codes, lanes, lanes, out);  // vectors of columns take the place of rows
  return counts ? std::ldexp(largest / kLargestCode, -Bfp20::kCodeAt) : 0;
}

}  // namespace

SparseRowProduct::SparseRowProduct(SparseRowProblem problem) : problem_(std::move(problem)) {
  problem_.isa = has_avx512(problem_.isa) ? Isa::avx512 : Isa::avx2;
  if (problem_.n < 1 || problem_.k < 1 || problem_.shares < 1) throw JitError("no product of a sparse row");
  const int64_t columns = SparseRow::group_columns(problem_.isa), lanes = vector_lanes(problem_.isa);
  strips_ = divide_up(problem_.n, kStripColumns);
  groups_ = divide_up(problem_.n, strips_ * columns);
  kernel_ = sparse_row_kernel(problem_.isa);
  GemmTilePlan tile;
  tile.isa = problem_.isa;
  tile.starts_at_a = true;
  tile.epilogue = problem_.epilogue;
  tile.vecs = SparseRow::kVecs;
  finish_ = gemm_tile(tile);
  const int64_t last = problem_.n % columns;
  if (last == 0) return;
  tile.vecs = static_cast<int>(divide_up(last, lanes));
  tile.masked = last % lanes != 0;
  finish_last_ = gemm_tile(tile);
}

int64_t SparseRowProduct::packed_words() const {
  return sum_elements() + strips_ * problem_.k * row_words();  // behind the units of the columns
}

void SparseRowProduct::pack(const MatrixView& b, float scale, float* packed,
                            const std::function<void(size_t bytes)>& has_packed) const {
  std::vector<float> largest(static_cast<size_t>(b.columns));
  find_largest(b, largest);
  has_packed(static_cast<size_t>(b.rows * b.columns * 4));  // it was read as a whole, and soon all of `packed` is there
  for (int64_t c = 0; c < sum_elements(); ++c)
    packed[c] = c < b.columns ? largest[static_cast<size_t>(c)] * std::abs(scale) : 0;
  constexpr int64_t kRows = 64;
  const int64_t groups = strips_ * groups_, blocks = divide_up(b.rows, kRows);
  const int64_t group_bytes = SparseRow::row_words(problem_.isa, 1) * 4 * b.rows;
  const auto pack_block = [&](int64_t group, int64_t block) {
    pack_group(b, scale, group, {block * kRows, std::min(b.rows, (block + 1) * kRows)}, packed);
  };
  // In the order of memory: what was read can go.
  if (b.row_stride == 1) {
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t block = 0; block < blocks; ++block) pack_block(group, block);
      has_packed(static_cast<size_t>(group_bytes));
    }
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t group = 0; group < groups; ++group) pack_block(group, block);
    has_packed(static_cast<size_t>(groups * group_bytes / blocks));
  }
}

// Of some rows; of no column, zeros.
void SparseRowProduct::pack_group(const MatrixView& b, float scale, int64_t group, const Range& rows,
                                  float* packed) const {
  const int64_t lanes = vector_lanes(problem_.isa), columns = SparseRow::group_columns(problem_.isa);
  const int64_t first = group * columns, exist = std::clamp<int64_t>(b.columns - first, 0, columns);
  const PanelFormat format{columns, lanes};
  const int64_t stored = exist > 0 ? format.width_of(group, b.columns) : 0;
  std::vector<float> block(static_cast<size_t>((rows.end - rows.begin) * stored));
  if (exist > 0) pack_panels(rows_of(b, rows.begin, rows.end), format, group, group + 1, scale, block.data());
  std::vector<float> row(static_cast<size_t>(columns));
  float* out = packed + sum_elements() + (group / groups_ * problem_.k + rows.begin) * row_words();
  for (int64_t i = 0; i < rows.end - rows.begin; ++i, out += row_words()) {
    for (int64_t c = 0; c < exist; ++c) {
      const float unit = packed[first + c];
      row[static_cast<size_t>(c)] = unit > 0 ? block[static_cast<size_t>(i * stored + c)] / unit : 0;
    }
    const int64_t in_strip = group % groups_;
    out[in_strip] = write_group(
        row.data(), lanes, out + SparseRow::scale_words(problem_.isa, groups_) + in_strip * Bfp20::kGroupWords * lanes);
  }
}

int64_t SparseRowProduct::most_taken() const { return round_up(divide_up(problem_.k, problem_.shares), int64_t{16}); }

void SparseRowProduct::multiply(const float* a, const float* packed, float* sums, float* taken,
                                int share) const noexcept {
  const Range mine = split_evenly(static_cast<long>(problem_.k), share, problem_.shares);
  auto* rows = reinterpret_cast<int32_t*>(taken);
  float *factors = taken + most_taken(), *part = factors + most_taken();
  int64_t count = 0;
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    rows[count] = static_cast<int32_t>(row);
    factors[count] = a[row];
    count += a[row] != 0 ? 1 : 0;  // a NaN is taken, too
  }
  const float* strip = packed + sum_elements();
  for (int64_t i = 0; i < strips_; ++i, strip += problem_.k * row_words())
    add_strip({rows, factors, count}, strip, sums + i * strip_columns(), part);
}

// Short sums are added up: errors grow with the length of a sum.
void SparseRowProduct::add_strip(const Taken& taken, const float* strip, float* sums, float* part) const noexcept {
  std::fill_n(sums, strip_columns(), 0.F);
  for (int64_t begin = 0; begin < taken.count; begin += kLongestSum) {
    const int64_t end = std::min(taken.count, begin + kLongestSum);
    if (begin == 0) {
      add_rows(taken, begin, end, strip, sums);
      continue;
    }
    std::fill_n(part, strip_columns(), 0.F);
    add_rows(taken, begin, end, strip, part);
    for (int64_t c = 0; c < strip_columns(); ++c) sums[c] += part[c];
  }
}

void SparseRowProduct::add_rows(const Taken& taken, int64_t begin, int64_t end, const float* strip,
                                float* sums) const noexcept {
  const int together = SparseRow::together(problem_.isa);
  const auto row_at = [&](int64_t i) { return strip + taken.rows[std::min(i, taken.count - 1)] * row_words(); };
  SparseRowArgs args;
  args.sums = sums;
  args.groups = groups_;
  args.scale_bytes = SparseRow::scale_words(problem_.isa, groups_) * 4;
  for (int64_t first = begin; first < end; first += together) {
    for (int i = 0; i < together; ++i) {
      args.rows[i] = row_at(std::min(first + i, end - 1));
      args.factors[i] = first + i < end ? taken.factors[first + i] : 0;
      args.next[i] = row_at(first + together + i);
    }
    kernel_(&args);
  }
}

void SparseRowProduct::finish(const float* packed, float* sums, float* c,
                              const std::array<const float*, kMaxGemmInputs>& inputs, int share) const noexcept {
  const int64_t width = SparseRow::group_columns(problem_.isa), columns = sum_elements();
  const Range mine = split_evenly(static_cast<long>(divide_up(problem_.n, width)), share, problem_.shares);
  for (int64_t group = mine.begin; group < mine.end; ++group) {
    const int64_t first = group * width;
    float* sum = sums + first;
    for (int other = 1; other < problem_.shares; ++other)
      for (int64_t i = 0; i < width; ++i) sum[i] += sum[other * columns + i];
    for (int64_t i = 0; i < width; ++i) sum[i] *= packed[first + i];
    const bool is_whole = first + width <= problem_.n;
    GemmTileArgs args = {};
    args.a = sum;
    args.c = c + first;
    args.tiles = 1;
    args.tail_lanes = problem_.n % vector_lanes(problem_.isa);
    for (size_t i = 0; problem_.epilogue && i < problem_.epilogue->inputs.size(); ++i)
      args.inputs[i] = inputs[i] + (problem_.epilogue->inputs[i] == GemmInputAccess::columns ? first : 0);
    (is_whole ? finish_ : finish_last_)(&args);
  }
}

}  // namespace lathe
