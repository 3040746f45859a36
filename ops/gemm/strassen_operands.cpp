// What goes into the products of blocks: the packed panels of B, and the sums of A's blocks.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "ops/gemm/strassen.h"

namespace lathe {
namespace {

// A product's sum of B's blocks, which lie one behind the other.
void add_blocks(const BilinearScheme::Product& product, const float* blocks, int64_t size, float* sum) {
  std::fill(sum, sum + size, 0.0F);
  for (size_t block = 0; block < product.b.size(); ++block) {
    if (product.b[block] == 0) continue;
    const auto sign = static_cast<float>(product.b[block]);
    const float* from = blocks + static_cast<int64_t>(block) * size;
    for (int64_t i = 0; i < size; ++i) sum[i] += sign * from[i];
  }
}

// The bits of the largest absolute value; those of infinity and NaN are larger than all others. `next`: the row that
// comes next, which is fetched meanwhile: a row ends before the CPU's own prefetcher is far ahead.
// Requires: count is a multiple of kLanes.
[[gnu::target("avx2")]] uint32_t largest_bits(const float* row, const float* next, int64_t count) {
  constexpr int64_t kLanes = 8;
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(next + i);
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  alignas(32) std::array<int32_t, kLanes> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), most);
  return static_cast<uint32_t>(*std::max_element(lanes.begin(), lanes.end()));
}

// A power of two, so that no digit is lost, which brings a row's largest element between 1 and 2; and what undoes it.
struct RowSize {
  RowScale scale;
  float size;
};
RowSize size_of_row(uint32_t largest) {
  constexpr uint32_t kExponentBit = 23, kInfinity = 255, kAll = ~uint32_t{0};
  const uint32_t exponent = largest >> kExponentBit;
  if (largest == 0) return {{1, kAll}, 0};
  if (exponent == kInfinity) return {{1, 0}, std::numeric_limits<float>::quiet_NaN()};
  const uint32_t inverse = std::clamp<uint32_t>(254 - exponent, 1, 253);
  return {{std::bit_cast<float>(inverse << kExponentBit), kAll}, std::bit_cast<float>((254 - inverse) << kExponentBit)};
}

}  // namespace

int64_t Strassen::sums_elements() const {
  constexpr int64_t kScaleFloats = sizeof(RowScale) / sizeof(float);
  return sums_of_blocks() + (shape_.scales_rows ? shape_.m * (1 + kScaleFloats) : 0) + (has_last_row() ? shape_.k : 0);
}

void Strassen::find_sizes(Range rows, const float* a, int64_t row_stride, float* sums) const noexcept {
  float* sizes = sums + sums_of_blocks();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const RowSize found = size_of_row(largest_bits(a + row * row_stride, a + (row + 1) * row_stride, shape_.k));
    sizes[row] = found.size;
    std::memcpy(sizes + shape_.m + 2 * row, &found.scale, sizeof(RowScale));
  }
}

std::string Strassen::packing() const {
  return fmt::format("strassen {} {}x{}", scheme().name, block_k_, shape_.width());
}

// Part by part of k, panel by panel: the panels of all sums, or of all blocks, one behind the other.
void Strassen::pack(const MatrixView& matrix, float scale, float* packed) const {
  const PanelFormat format{shape_.width(), vector_lanes(shape_.isa)};
  const int64_t size = block_k_ * shape_.width(), block_columns = shape_.n / scheme().columns;
  const auto pack_block = [&](int64_t block, int64_t panel, int number, float* to) {
    const int64_t row = (scheme().inner * block + number / scheme().columns) * block_k_;
    const int64_t column = number % scheme().columns * block_columns + panel * shape_.width();
    MatrixView view = matrix;
    view.data += row * matrix.row_stride + column * matrix.column_stride;
    view.rows = block_k_;
    view.columns = shape_.width();
    pack_panels(view, format, 0, 1, scale, to);
  };
  std::vector<float> blocks(static_cast<size_t>(scheme().b_blocks() * size));
  for (int64_t block = 0; block < blocks_; ++block) {
    for (int64_t panel = 0; panel < panels(); ++panel) {
      for (int i = 0; i < scheme().b_blocks(); ++i)
        pack_block(block, panel, i, scheme().packs_sums ? blocks.data() + i * size : packed + i * size);
      for (int64_t i = 0; scheme().packs_sums && i < products(); ++i)
        add_blocks(scheme().products[static_cast<size_t>(i)], blocks.data(), size, packed + i * size);
      packed += packed_blocks() * size;
    }
  }
}

void Strassen::sum(const float* a, const StrassenMatrix& a_layout, float* sums, int share, int shares) const noexcept {
  // Of vectors that lie in so few sets of the caches all those of a row cannot be there at once: one after the other.
  constexpr int64_t kFewSets = 16 << 10, kFarApart = 128 << 10;
  const int64_t apart = a_layout.vector_stride * 4;
  if (has_last_row() && share == 0) copy_last_row(a, a_layout, sums + sums_of_blocks());
  const bool by_vector = shares == 1 && !shape_.scales_rows && apart >= kFarApart && apart % kFewSets == 0;
  const Range mine = split_evenly(static_cast<long>(rows_.half), share, shares);
  for (int64_t block = 0; block < blocks_; ++block) {
    if (by_vector) {
      sum_vectors(block, a, a_layout, sums);
      continue;
    }
    for (int64_t row = mine.begin; row < mine.end;) {
      const int64_t end = std::min<int64_t>(mine.end, rows_.row_of(rows_.tile_of(row) + 1));
      if (shape_.scales_rows && block == 0) {  // just before: most of the rows are in L1 then
        find_sizes({row, end}, a, a_layout.row_stride, sums);
        find_sizes({rows_.bottom + row, rows_.bottom + end}, a, a_layout.row_stride, sums);
      }
      sum_tile(block, {row, end}, a, a_layout, sums);
      row = end;
    }
  }
}

const float* Strassen::block_in_a(const float* a, const StrassenMatrix& a_layout, int64_t block, int number) const {
  const int64_t row = number < scheme().inner ? 0 : rows_.bottom;
  const int64_t vector = (scheme().inner * block + number % scheme().inner) * block_k_ / vector_lanes(shape_.isa);
  return a + row * a_layout.row_stride + vector * a_layout.vector_stride;
}

void Strassen::copy_last_row(const float* a, const StrassenMatrix& a_layout, float* to) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa);
  a += (shape_.m - 1) * a_layout.row_stride;
  for (int64_t k = 0; k < shape_.k; k += lanes, a += a_layout.vector_stride)
    std::memcpy(to + k, a, static_cast<size_t>(lanes) * 4);
}

BlockSumsArgs Strassen::sums_from(int64_t block, int64_t row, const float* a, const StrassenMatrix& a_layout,
                                  float* sums) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa), tile = rows_.tile_of(row), first = rows_.row_of(tile);
  BlockSumsArgs args;
  args.in = block_in_a(a, a_layout, block, 0) + row * a_layout.row_stride;
  args.out = sums + block * sum_count_ * sums_stride() + first * block_k_ + (row - first) * lanes;
  args.in_block_row_bytes = rows_.bottom * a_layout.row_stride * 4;
  args.in_block_column_bytes = block_k_ / lanes * a_layout.vector_stride * 4;
  args.out_sum_bytes = sums_stride() * 4;
  args.in_vector_bytes = a_layout.row_stride * 4;
  args.out_vector_bytes = lanes * 4;
  args.scales = row_scales(sums) + row;
  args.scales_block_row_bytes = rows_.bottom * static_cast<int64_t>(sizeof(RowScale));
  return args;
}

// Rows of one tile, in the order in which the products read them: so the sums are written line by line.
void Strassen::sum_tile(int64_t block, Range rows, const float* a, const StrassenMatrix& a_layout,
                        float* sums) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa), tile = rows_.tile_of(rows.begin);
  BlockSumsArgs args = sums_from(block, rows.begin, a, a_layout, sums);
  args.rows = block_k_ / lanes;
  args.vectors = rows.end - rows.begin;
  args.in_stride_bytes = a_layout.vector_stride * 4;
  args.out_stride_bytes = (rows_.row_of(tile + 1) - rows_.row_of(tile)) * lanes * 4;
  sums_(&args);
}

// All rows: of all tiles a vector, then of all the next one. Rows are not scaled.
void Strassen::sum_vectors(int64_t block, const float* a, const StrassenMatrix& a_layout, float* sums) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa);
  for (int64_t vector = 0; vector < block_k_ / lanes; ++vector) {
    for (int shorter = 0; shorter < 2; ++shorter) {
      const int64_t tiles = shorter == 0 ? rows_.tall : rows_.tiles - rows_.tall;
      if (tiles == 0) continue;
      const int64_t height = rows_.height - shorter, row = shorter == 0 ? 0 : rows_.tall * rows_.height;
      BlockSumsArgs args = sums_from(block, row, a + vector * a_layout.vector_stride, a_layout, sums);
      args.out += vector * height * lanes;
      args.rows = tiles;
      args.vectors = height;
      args.in_stride_bytes = height * a_layout.row_stride * 4;
      args.out_stride_bytes = height * block_k_ * 4;
      sums_(&args);
    }
  }
}

}  // namespace lathe
