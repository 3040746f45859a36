#include "ops/gemm/strassen.h"

#include <algorithm>

#include "ops/core_cycles.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineFloats = 16;  // of a cache line

// How a product's sum of B's blocks is loaded: the first, plus or minus the second. sign 0: the first alone.
struct BOperand {
  int first = 0, second = 0, sign = 0;
};
BOperand b_operand(const BilinearScheme::Product& product) {
  BOperand b;
  b.first = static_cast<int>(std::find(product.b.begin(), product.b.end(), 1) - product.b.begin());
  for (size_t i = 0; i < product.b.size(); ++i) {
    if (product.b[i] == 0 || static_cast<int>(i) == b.first) continue;
    b.second = static_cast<int>(i);
    b.sign = product.b[i];
  }
  return b;
}

Isa kernel_isa(Isa isa) { return has_avx512(isa) ? Isa::avx512 : Isa::avx2; }

// Two multipliers have no loads to spare for broadcasts as operands: in the widest tiles, 384 channels to 384 of 400
// pixels take 7 % less than directly, in those of two vectors with broadcasts 4 % more.
void choose_block_tile(StrassenShape& shape, const CoreRates& rates) {
  const int64_t columns = shape.n / shape.scheme->columns;
  const bool is_packed_for_two = shape.scheme->packs_sums && has_two_wide_products(shape.isa, rates);
  shape.vecs = 2;
  shape.rows = has_avx512(shape.isa) ? 14 : 6;
  if (!has_avx512(shape.isa)) return;
  if (columns % 64 == 0 && is_packed_for_two) {
    shape.vecs = 4;
    shape.rows = 6;
    return;
  }
  if (columns % 48 == 0) {  // fewer broadcasts
    shape.vecs = 3;
    shape.rows = 8;
    return;
  }
  // Of narrow panels each tile reads less from L2. Where they do not come out even (80, 112) they are of single
  // vectors.
  shape.embed_broadcast = !is_packed_for_two;
  if (columns % 32 == 0) return;
  shape.vecs = 1;
  shape.rows = 24;
}

}  // namespace

bool has_quadrants(const StrassenShape& shape) {
  return shape.m >= 2 && shape.n > 0 && shape.k > 0 && shape.k_block > 0 && shape.rows > 0 && shape.rows < 32 &&
         shape.vecs > 0 && (shape.aside || !shape.scales_rows) && (!shape.in_blocks || shape.vecs <= 4) &&
         (!shape.epilogue || !shape.aside) && (shape.in_blocks || !shape.reads_a) &&
         (shape.aside || !shape.scheme->packs_sums || shape.m % 2 == 0) &&
         shape.n % (shape.scheme->columns * shape.width()) == 0 && parts_of_k(shape) > 0;
}

int64_t parts_of_k(const StrassenShape& shape) {
  for (int64_t blocks = divide_up(shape.k, shape.k_block); blocks <= 64; ++blocks) {
    if (shape.k % (blocks * shape.scheme->inner * vector_lanes(shape.isa)) == 0) return blocks;
  }
  return 0;
}

StrassenShape shape_in_blocks(const BilinearScheme& scheme, Isa isa, int64_t m, int64_t n, int64_t k,
                              const CoreRates& rates) {
  StrassenShape shape;
  shape.isa = isa;
  shape.scheme = &scheme;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.k_block = scheme.takes_sums() ? 4096 : 1024;
  shape.in_blocks = true;
  shape.reads_a = true;
  choose_block_tile(shape, rates);
  return shape;
}

bool pays_strassen(Isa isa, const CoreRates& rates) { return rates.adds_beside || products_per_cycle(isa, rates) > 1; }

double strassen_gain(const BilinearScheme& scheme, int64_t n, int64_t k, const StrassenOverhead& overhead) {
  const auto products = static_cast<double>(scheme.products.size());
  const auto plain = static_cast<double>(scheme.rows * scheme.inner * scheme.columns);
  return 1 - products / plain - overhead.columns / static_cast<double>(n) - overhead.steps / static_cast<double>(k);
}

Strassen::Strassen(const StrassenShape& shape) : shape_(shape) {
  if (!has_quadrants(shape)) throw JitError("a matrix without even blocks");
  blocks_ = parts_of_k(shape);
  block_k_ = shape.k / blocks_ / scheme().inner;
  if (blocks_ > 1 && scheme().takes_sums()) throw JitError("C comes from several passes over k");
  for (int64_t product = 0; product < products(); ++product)
    sum_of_.push_back(block_of_a(product) >= 0 ? -1 : sum_count_++);
  cut_rows();
  make_folds();
  emit_kernels();
}

int Strassen::block_of_a(int64_t product) const {
  const auto& a = scheme().products[static_cast<size_t>(product)].a;
  const auto one = std::find(a.begin(), a.end(), 1);
  const bool is_alone = one != a.end() && std::count(a.begin(), a.end(), 0) + 1 == static_cast<long>(a.size());
  return shape_.reads_a && is_alone ? static_cast<int>(one - a.begin()) : -1;
}

// The first to touch a block of C sets it.
void Strassen::make_folds() {
  std::array<bool, 6> is_set = {};
  for (const BilinearScheme::Product& product : scheme().products) {
    std::vector<Fold> folds;
    if (product.takes >= 0) folds.push_back({product.takes, GemmFold::take, false});
    for (int block = 0; block < scheme().c_blocks(); ++block) {
      const auto i = static_cast<size_t>(block);
      if (product.c[i] == 0) continue;
      const bool sets = !is_set[i] || product.takes == block;
      const bool is_last = std::all_of(&product + 1, scheme().products.data() + scheme().products.size(),
                                       [&](const BilinearScheme::Product& later) { return later.c[i] == 0; });
      folds.push_back({block, product.c[i] < 0 ? GemmFold::subtract : sets ? GemmFold::set : GemmFold::add, is_last});
      is_set[i] = true;
    }
    folds_.push_back(std::move(folds));
  }
}

void Strassen::cut_rows() {
  rows_.half = (shape_.m + (shape_.aside ? 1 : 0)) / 2;
  rows_.bottom = shape_.aside ? shape_.m - rows_.half : rows_.half;
  rows_.tiles = divide_up(rows_.half, shape_.rows);
  rows_.height = static_cast<int>(divide_up(rows_.half, rows_.tiles));
  rows_.tall = rows_.half - rows_.tiles * (rows_.height - 1);
}

void Strassen::emit_kernels() {
  BlockSumsPlan sums;
  sums.isa = kernel_isa(shape_.isa);
  sums.rows = scheme().rows;
  sums.columns = scheme().inner;
  sums.scaled = shape_.scales_rows;
  for (int64_t product = 0; product < products(); ++product) {
    const auto& a = scheme().products[static_cast<size_t>(product)].a;
    if (sum_of_[static_cast<size_t>(product)] >= 0) sums.sums.emplace_back(a.begin(), a.begin() + scheme().a_blocks());
  }
  sums_ = block_sums(sums);
  products_.resize(kMostHeight);
  emit_products(rows_.height);
  if (rows_.tall < rows_.tiles) emit_products(rows_.height - 1);
  if (!has_last_row()) return;
  GemmTilePlan row;
  row.isa = kernel_isa(shape_.isa);
  row.vecs = shape_.vecs;
  row.apart = shape_.in_blocks;
  row.folds[0] = GemmFold::set;
  row_[0] = gemm_tile(row);
  row.folds[0] = GemmFold::add;
  row_[1] = gemm_tile(row);
}

GemmTilePlan Strassen::tile_plan(int height) const {
  GemmTilePlan tile;
  tile.isa = kernel_isa(shape_.isa);
  tile.rows = height;
  tile.vecs = shape_.vecs;
  tile.k_unroll = vector_lanes(shape_.isa);
  tile.a_in_chunks = true;
  tile.embed_broadcast = shape_.embed_broadcast;
  tile.apart = shape_.in_blocks;
  tile.fetches_folds = !shape_.aside;
  // A product prefetches the sums of B that come next; without such sums, one pass over all products the blocks of the
  // next panels. Each pass also fetches the rows of C that it completes.
  const int64_t passes = products() * rows_.tiles;
  const int64_t lines = packed_blocks() * block_k_ * shape_.width() / kLineFloats;
  tile.prefetch_lines = static_cast<int>(divide_up(lines, passes * (block_k_ / tile.k_unroll)));
  if (shape_.aside) {
    tile.fetch_rows = static_cast<int>(divide_up(2 * rows_.half, passes));
    tile.fetch_matrices = scheme().columns;
  }
  return tile;
}

void Strassen::emit_products(int height) {
  Products& kernels = products_[static_cast<size_t>(height)];
  if (!kernels[0].empty()) return;
  GemmTilePlan tile = tile_plan(height);
  for (int64_t block = 0; block < blocks_; ++block) {
    std::vector<GemmTile>& tiles = kernels[place_of(block)];
    for (size_t i = 0; tiles.size() < folds_.size(); ++i) {
      tile.folds = {};
      tile.completes = {};
      for (size_t fold = 0; fold < folds_[i].size(); ++fold) {
        const GemmFold how = folds_[i][fold].how;
        tile.folds[fold] = block > 0 && how == GemmFold::set ? GemmFold::add : how;
        tile.completes[fold] = shape_.epilogue && block + 1 == blocks_ && folds_[i][fold].is_last;
      }
      const bool completes_any = std::find(tile.completes.begin(), tile.completes.end(), true) != tile.completes.end();
      tile.epilogue = completes_any ? shape_.epilogue : std::nullopt;
      tile.b_sign = scheme().packs_sums ? 0 : b_operand(scheme().products[i]).sign;
      tiles.push_back(gemm_tile(tile));
    }
  }
}

size_t Strassen::place_of(int64_t block) const { return block == 0 ? 0 : block + 1 < blocks_ ? 1 : 2; }

int64_t Strassen::Halves::tile_of(int64_t row_of_half) const {
  const int64_t in_tall = tall * height;
  return row_of_half < in_tall ? row_of_half / height : tall + (row_of_half - in_tall) / (height - 1);
}

int64_t Strassen::Halves::row_of(int64_t tile) const { return tile * height - std::max<int64_t>(0, tile - tall); }

const float* Strassen::block_of_b(const Operands& operands, int64_t block, int64_t panel, int64_t number) const {
  return operands.b + ((block * panels() + panel) * packed_blocks() + number) * block_k_ * shape_.width();
}

int64_t Strassen::aside_stride() const { return scheme().columns * shape_.width() + kLineFloats; }

int64_t Strassen::aside_elements() const { return shape_.aside ? 2 * rows_.half * aside_stride() : 0; }

StrassenMatrix Strassen::c_layout(const Operands& operands) const {
  return shape_.aside ? StrassenMatrix{aside_stride(), vector_lanes(shape_.isa)} : operands.c_layout;
}

float* Strassen::place_in_c(const Operands& operands, const Panel& panel, int block, int64_t row_of_half) const {
  const bool is_bottom = block >= scheme().columns;
  const int column_of_blocks = block % scheme().columns;
  if (shape_.aside) {
    const int64_t row = (is_bottom ? rows_.half : 0) + row_of_half;
    return operands.aside + row * aside_stride() + column_of_blocks * shape_.width();
  }
  return place_in_c_itself(operands, panel, column_of_blocks, (is_bottom ? rows_.bottom : 0) + row_of_half);
}

float* Strassen::place_in_c_itself(const Operands& operands, const Panel& panel, int column_of_blocks,
                                   int64_t row) const {
  return operands.c + column_of(panel, column_of_blocks) / vector_lanes(shape_.isa) * operands.c_layout.vector_stride +
         row * operands.c_layout.row_stride;
}

int64_t Strassen::column_of(const Panel& panel, int column_of_blocks) const {
  return panel.number * shape_.width() + column_of_blocks * (shape_.n / scheme().columns);
}

// The share's next panels; what comes behind its last ones is not always known.
const void* Strassen::weights_behind(const Operands& operands, const Panel& panel) const {
  const bool is_last_block = panel.block + 1 == blocks_, is_last_panel = panel.number + 1 == panel.mine.end;
  if (is_last_block && is_last_panel) {
    if (operands.next_weights != nullptr) return operands.next_weights;
    // Of this share; the next one follows.
    return block_of_b(operands, 0, std::min(panel.number + 1, panels() - 1), 0);
  }
  int64_t block = panel.block, number = panel.number;
  if (shape_.aside) {
    block = is_last_block ? 0 : block + 1;
    if (is_last_block) number = is_last_panel ? panel.mine.begin : number + 1;
  } else {
    number = is_last_panel ? panel.mine.begin : number + 1;
    if (is_last_panel) block = is_last_block ? 0 : block + 1;
  }
  return block_of_b(operands, block, number, 0);
}

void Strassen::run_panel(const Operands& operands, const Panel& panel) const noexcept {
  const StrassenMatrix c = c_layout(operands);
  GemmTileArgs args = {};
  args.k = block_k_;
  args.c_stride_bytes = c.row_stride * 4;
  args.input_stride_bytes[0] = args.input_stride_bytes[1] = args.input_stride_bytes[2] = args.c_stride_bytes;
  args.c_vector_bytes = c.vector_stride * 4;
  args.prefetch = weights_behind(operands, panel);
  if (shape_.aside && panel.block + 1 == blocks_) {  // the panel is soon complete and goes to C
    args.fetch = place_in_c_itself(operands, panel, 0, 0);
    args.fetch_left = shape_.m;
    args.fetch_stride_bytes = operands.c_layout.row_stride * 4;
    args.fetch_matrix_bytes = shape_.n / scheme().columns * 4;
  }
  for (int64_t product = 0; product < products(); ++product) {
    if (scheme().packs_sums)
      args.prefetch = product + 1 < products() ? block_of_b(operands, panel.block, panel.number, product + 1)
                                               : weights_behind(operands, panel);
    run_product(product, operands, panel, args);
  }
  if (has_last_row()) run_last_row(operands, panel);
}

void Strassen::run_product(int64_t product, const Operands& operands, const Panel& panel,
                           GemmTileArgs& args) const noexcept {
  const BilinearScheme::Product& terms = scheme().products[static_cast<size_t>(product)];
  const BOperand b = scheme().packs_sums ? BOperand{static_cast<int>(product)} : b_operand(terms);
  args.b = block_of_b(operands, panel.block, panel.number, b.first);
  args.b_second_bytes = int64_t{b.second - b.first} * block_k_ * shape_.width() * 4;
  const int64_t lanes = vector_lanes(shape_.isa), sum = sum_of_[static_cast<size_t>(product)];
  const int a_block = block_of_a(product);
  const float* a = sum < 0 ? block_in_a(operands.a, operands.a_layout, panel.block, a_block)
                           : operands.sums + (panel.block * sum_count_ + sum) * sums_stride();
  const int64_t a_row = sum < 0 ? lanes : block_k_;  // rows of one tile begin so far behind those of the last
  args.a_stride_bytes = a_row * 4;
  for (int shorter = 0; shorter < 2; ++shorter) {
    args.tiles = shorter == 0 ? rows_.tall : rows_.tiles - rows_.tall;
    if (args.tiles == 0) continue;
    const int64_t row = shorter == 0 ? 0 : rows_.tall * rows_.height;
    args.a = a + row * a_row;
    args.a_chunk_bytes = (sum < 0 ? operands.a_layout.vector_stride : (rows_.height - shorter) * lanes) * 4;
    const std::vector<Fold>& folds = folds_[static_cast<size_t>(product)];
    args.c = place_in_c(operands, panel, folds[0].block, row);
    for (size_t i = 1; i < folds.size(); ++i) args.inputs[i - 1] = place_in_c(operands, panel, folds[i].block, row);
    for (size_t i = 0; i < folds.size(); ++i) give_inputs(operands, panel, folds[i].block, i, args);
    products_[static_cast<size_t>(rows_.height - shorter)][place_of(panel.block)][static_cast<size_t>(product)].entry()(
        &args);
  }
}

// What the epilogue reads for a matrix.
void Strassen::give_inputs(const Operands& operands, const Panel& panel, int block, size_t fold,
                           GemmTileArgs& args) const noexcept {
  if (!shape_.epilogue) return;
  const int64_t column = column_of(panel, block % scheme().columns);
  for (size_t i = 0; i < operands.inputs.size(); ++i) {
    const bool by_column = shape_.epilogue->inputs[i] == GemmInputAccess::columns;
    args.fold_inputs[fold][i] = operands.inputs[i] + (by_column ? column : 0);
    args.alike_bytes[i] = reinterpret_cast<intptr_t>(operands.inputs[i]) - reinterpret_cast<intptr_t>(operands.c);
  }
}

void Strassen::run_last_row(const Operands& operands, const Panel& panel) const noexcept {
  GemmTileArgs args = {};
  args.tiles = 1;
  args.c_vector_bytes = c_layout(operands).vector_stride * 4;
  args.k = block_k_;
  for (int column = 0; column < scheme().columns; ++column) {
    args.c = place_in_c_itself(operands, panel, column, shape_.m - 1);
    for (int inner = 0; inner < scheme().inner; ++inner) {
      args.a = operands.sums + sums_of_blocks() + (scheme().inner * panel.block + inner) * block_k_;
      args.b = block_of_b(operands, panel.block, panel.number, scheme().columns * inner + column);
      row_[panel.block == 0 && inner == 0 ? 0 : 1].entry()(&args);
    }
  }
}

}  // namespace lathe
