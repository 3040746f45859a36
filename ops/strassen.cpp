#include "ops/strassen.h"

#include <algorithm>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineFloats = 16;  // of a cache line

// Quadrants are numbered 0 1 / 2 3. The products come in an order in which the first to touch a quadrant of C sets it.
struct Target {
  int quadrant;
  GemmFold fold;
};
struct Term {
  QuadrantSum a;
  int b, b_second, b_sign;  // quadrants of B; b_sign 0: the first alone
  Target first, second;
};
constexpr GemmFold kSet = GemmFold::set, kAdd = GemmFold::add, kSubtract = GemmFold::subtract, kNone = GemmFold::none;
constexpr Term kTerms[] = {
    {{1, 0, 0, 1}, 0, 3, 1, {0, kSet}, {3, kSet}},      {{1, 0, 0, 0}, 1, 3, -1, {1, kSet}, {3, kAdd}},
    {{0, 0, 1, 1}, 0, 0, 0, {2, kSet}, {3, kSubtract}}, {{0, 0, 0, 1}, 2, 0, -1, {0, kAdd}, {2, kAdd}},
    {{1, 1, 0, 0}, 3, 3, 0, {0, kSubtract}, {1, kAdd}}, {{-1, 0, 1, 0}, 0, 1, 1, {3, kAdd}, {0, kNone}},
    {{0, 1, 0, -1}, 2, 3, 1, {0, kAdd}, {0, kNone}},
};

// Blocks of k whose halves are whole vectors; 0: there is no such number.
int64_t block_count(const StrassenShape& shape) {
  for (int64_t blocks = divide_up(shape.k, shape.k_block); blocks <= 64; ++blocks) {
    if (shape.k % (blocks * 2 * vector_lanes(shape.isa)) == 0) return blocks;
  }
  return 0;
}

Isa kernel_isa(Isa isa) { return has_avx512(isa) ? Isa::avx512 : Isa::avx2; }

}  // namespace

bool has_quadrants(const StrassenShape& shape) {
  return shape.m >= 2 && shape.n > 0 && shape.k > 0 && shape.k_block > 0 && shape.row_block > 1 && shape.rows > 0 &&
         shape.rows < 32 && shape.vecs > 0 && (!shape.in_blocks || shape.vecs <= 4) &&
         shape.n % (2 * shape.width()) == 0 && block_count(shape) > 0;
}

bool pays_strassen() { return cpu_facts().vendor == "AuthenticAMD"; }

Strassen::Strassen(const StrassenShape& shape) : shape_(shape) {
  if (!has_quadrants(shape)) throw JitError("a matrix without even halves");
  blocks_ = block_count(shape);
  half_k_ = shape.k / blocks_ / 2;
  make_parts();
  emit_kernels();
}

void Strassen::make_parts() {
  const int64_t halves = shape_.m / 2;
  const int64_t count = std::min(halves, divide_up(shape_.m, shape_.row_block));
  int64_t row = 0, sums = 0;
  for (int64_t i = 0; i < count; ++i) {
    Part part;
    part.row = row;
    part.half = halves * (i + 1) / count - halves * i / count;
    part.tiles = divide_up(part.half, shape_.rows);
    part.height = static_cast<int>(divide_up(part.half, part.tiles));
    part.tall = part.half - part.tiles * (part.height - 1);
    part.sums = sums;
    row += 2 * part.half;
    sums += blocks_ * kProducts * part.half * half_k_;
    parts_.push_back(part);
  }
}

void Strassen::emit_kernels() {
  QuadrantSumsPlan sums;
  sums.isa = kernel_isa(shape_.isa);
  for (const Term& term : kTerms) sums.sums.push_back(term.a);
  sums_ = quadrant_sums(sums);
  products_.resize(kMostHeight);
  for (const Part& part : parts_) {
    emit_products(part.height);
    if (part.tall < part.tiles) emit_products(part.height - 1);
  }
  GemmTilePlan row;
  row.isa = kernel_isa(shape_.isa);
  row.vecs = shape_.vecs;
  row.apart = shape_.in_blocks;
  row.fold = kSet;
  row_[0] = gemm_tile(row);
  row.fold = kAdd;
  row_[1] = gemm_tile(row);
}

void Strassen::emit_products(int height) {
  Products& products = products_[static_cast<size_t>(height)];
  if (products[0][0]) return;
  GemmTilePlan tile;
  tile.isa = kernel_isa(shape_.isa);
  tile.rows = height;
  tile.vecs = shape_.vecs;
  tile.k_unroll = vector_lanes(shape_.isa);
  tile.a_in_chunks = true;
  tile.embed_broadcast = shape_.embed_broadcast;
  tile.apart = shape_.in_blocks;
  // One pass over all products prefetches the four panels that come next, and the rows of C that it completes.
  const int64_t lines = 4 * half_k_ * shape_.width() / kLineFloats;
  const int64_t tiles = kProducts * parts_[0].tiles;
  tile.prefetch_lines = static_cast<int>(divide_up(lines, tiles * (half_k_ / tile.k_unroll)));
  if (shape_.aside) tile.fetch_rows = static_cast<int>(divide_up(2 * parts_[0].half, tiles));
  for (size_t later = 0; later < (blocks_ > 1 ? 2 : 1); ++later) {
    for (size_t product = 0; product < size_t{kProducts}; ++product) {
      const Term& term = kTerms[product];
      const auto fold_of = [&](GemmFold fold) { return later == 1 && fold == kSet ? kAdd : fold; };
      tile.fold = fold_of(term.first.fold);
      tile.fold_second = fold_of(term.second.fold);
      tile.b_sign = term.b_sign;
      products[later][product] = gemm_tile(tile);
    }
  }
}

int64_t Strassen::Part::tile_of(int64_t row_of_half) const {
  const int64_t in_tall = tall * height;
  return row_of_half < in_tall ? row_of_half / height : tall + (row_of_half - in_tall) / (height - 1);
}

int64_t Strassen::Part::row_of(int64_t tile) const { return tile * height - std::max<int64_t>(0, tile - tall); }

int64_t Strassen::sums_elements() const {
  return parts_.back().sums + blocks_ * kProducts * parts_.back().half * half_k_;
}

// Block by block of k, panel by panel: the four quadrants' panels one behind the other.
void Strassen::pack(const MatrixView& matrix, float scale, float* packed) const {
  const PanelFormat format{shape_.width(), vector_lanes(shape_.isa)};
  for (int64_t block = 0; block < blocks_; ++block) {
    for (int64_t panel = 0; panel < panels(); ++panel) {
      for (int q = 0; q < 4; ++q) {
        const int64_t row = (2 * block + q / 2) * half_k_, column = q % 2 * (shape_.n / 2) + panel * shape_.width();
        MatrixView view = matrix;
        view.data += row * matrix.row_stride + column * matrix.column_stride;
        view.rows = half_k_;
        view.columns = shape_.width();
        pack_panels(view, format, 0, 1, scale, packed);
        packed += half_k_ * shape_.width();
      }
    }
  }
}

void Strassen::sum(const float* a, const StrassenMatrix& a_layout, float* sums, int share, int shares) const noexcept {
  for (const Part& part : parts_) {
    const Range mine = split_evenly(static_cast<long>(part.half), share, shares);
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int64_t row = mine.begin; row < mine.end;) {
        const int64_t end = std::min<int64_t>(mine.end, part.row_of(part.tile_of(row) + 1));
        sum_tile(part, block, {row, end}, a, a_layout, sums);
        row = end;
      }
    }
  }
}

// Rows of one tile, in the order in which the products read them.
void Strassen::sum_tile(const Part& part, int64_t block, Range rows, const float* a, const StrassenMatrix& a_layout,
                        float* sums) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa), tile = part.tile_of(rows.begin), first = part.row_of(tile);
  const int64_t height = part.row_of(tile + 1) - first;
  QuadrantSumsArgs args;
  for (int64_t q = 0; q < 4; ++q) {
    const int64_t row = part.row + q / 2 * part.half + rows.begin, vector = (2 * block + q % 2) * half_k_ / lanes;
    args.in[static_cast<size_t>(q)] = a + row * a_layout.row_stride + vector * a_layout.vector_stride;
  }
  for (int64_t i = 0; i < kProducts; ++i) {
    float* product = sums + part.sums + (block * kProducts + i) * part.half * half_k_;
    args.out[static_cast<size_t>(i)] = product + first * half_k_ + (rows.begin - first) * lanes;
  }
  // Down the tile's rows first: so the sums are written line by line.
  args.rows = half_k_ / lanes;
  args.vectors = rows.end - rows.begin;
  args.in_stride_bytes = a_layout.vector_stride * 4;
  args.out_stride_bytes = height * lanes * 4;
  args.in_vector_bytes = a_layout.row_stride * 4;
  args.out_vector_bytes = lanes * 4;
  sums_(&args);
}

const float* Strassen::quadrant_of_b(const Operands& operands, int64_t block, int64_t panel, int q) const {
  return operands.b + ((block * panels() + panel) * 4 + q) * half_k_ * shape_.width();
}

int64_t Strassen::aside_stride() const { return 2 * shape_.width() + kLineFloats; }

int64_t Strassen::aside_elements() const {
  int64_t most_rows = 0;
  for (const Part& part : parts_) most_rows = std::max(most_rows, 2 * part.half + 1);
  return shape_.aside ? most_rows * aside_stride() : 0;
}

StrassenMatrix Strassen::c_layout(const Operands& operands) const {
  return shape_.aside ? StrassenMatrix{aside_stride(), vector_lanes(shape_.isa)} : operands.c_layout;
}

float* Strassen::place_in_c(const Operands& operands, const Panel& panel, int side, int64_t row) const {
  if (shape_.aside) return operands.aside + (row - panel.part.row) * aside_stride() + side * shape_.width();
  const int64_t column = panel.number * shape_.width() + side * (shape_.n / 2);
  return operands.c + column / vector_lanes(shape_.isa) * operands.c_layout.vector_stride +
         row * operands.c_layout.row_stride;
}

// The share's next panels; what comes behind its last ones is not always known.
const void* Strassen::weights_behind(const Operands& operands, const Panel& panel) const {
  const bool is_last_block = panel.block + 1 == blocks_, is_last_panel = panel.number + 1 == panel.mine.end;
  if (is_last_block && is_last_panel && panel.is_last_part && operands.next_weights != nullptr) {
    return operands.next_weights;
  }
  if (is_last_block && is_last_panel && panel.is_last_part)  // of this share; the next one follows
    return quadrant_of_b(operands, 0, std::min(panel.number + 1, panels() - 1), 0);
  int64_t block = panel.block, number = panel.number;
  if (shape_.aside) {
    block = is_last_block ? 0 : block + 1;
    if (is_last_block) number = is_last_panel ? panel.mine.begin : number + 1;
  } else {
    number = is_last_panel ? panel.mine.begin : number + 1;
    if (is_last_panel) block = is_last_block ? 0 : block + 1;
  }
  return quadrant_of_b(operands, block, number, 0);
}

void Strassen::run_panel(const Operands& operands, const Panel& panel) const noexcept {
  const StrassenMatrix c = c_layout(operands);
  GemmTileArgs args = {};
  args.k = half_k_;
  args.a_stride_bytes = half_k_ * 4;
  args.c_stride_bytes = args.input_stride_bytes[0] = c.row_stride * 4;
  args.c_vector_bytes = c.vector_stride * 4;
  args.prefetch = weights_behind(operands, panel);
  if (shape_.aside && panel.block + 1 == blocks_) {  // the panel is soon complete and goes to C
    for (size_t side = 0; side < 2; ++side) {
      const int64_t column = panel.number * shape_.width() + static_cast<int64_t>(side) * (shape_.n / 2);
      args.fetch[side] = operands.c + panel.part.row * operands.c_layout.row_stride + column;
    }
    args.fetch_left = 2 * panel.part.half;
    args.fetch_stride_bytes = operands.c_layout.row_stride * 4;
  }
  for (int product = 0; product < kProducts; ++product) run_product(product, operands, panel, args);
  if (panel.is_last_part && shape_.m % 2 != 0) run_last_row(operands, panel);
}

void Strassen::run_product(int product, const Operands& operands, const Panel& panel,
                           GemmTileArgs& args) const noexcept {
  const Term& term = kTerms[product];
  const Part& part = panel.part;
  args.b = quadrant_of_b(operands, panel.block, panel.number, term.b);
  args.b_second_bytes = int64_t{term.b_second - term.b} * half_k_ * shape_.width() * 4;
  const float* a = operands.sums + part.sums + (panel.block * kProducts + product) * part.half * half_k_;
  const auto target = [&](const Target& to, int64_t row) {
    return place_in_c(operands, panel, to.quadrant % 2, part.row + to.quadrant / 2 * part.half + row);
  };
  for (int shorter = 0; shorter < 2; ++shorter) {
    args.tiles = shorter == 0 ? part.tall : part.tiles - part.tall;
    if (args.tiles == 0) continue;
    const int64_t row = shorter == 0 ? 0 : part.tall * part.height;
    args.a = a + row * half_k_;
    args.c = target(term.first, row);
    args.inputs[0] = target(term.second, row);
    products_[static_cast<size_t>(part.height - shorter)][panel.block > 0 ? 1 : 0][static_cast<size_t>(product)]
        .entry()(&args);
  }
}

// One row: lanes of A from its own memory, a vector of them after the other when they lie apart.
void Strassen::run_last_row(const Operands& operands, const Panel& panel) const noexcept {
  const int64_t lanes = vector_lanes(shape_.isa), row = shape_.m - 1;
  GemmTileArgs args = {};
  args.tiles = 1;
  args.c_vector_bytes = c_layout(operands).vector_stride * 4;
  args.k = operands.a_layout.vector_stride == lanes ? half_k_ : lanes;
  for (int side = 0; side < 2; ++side) {
    args.c = place_in_c(operands, panel, side, row);
    bool is_first = panel.block == 0;
    for (int half = 0; half < 2; ++half) {
      const float* b = quadrant_of_b(operands, panel.block, panel.number, 2 * half + side);
      for (int64_t k = 0; k < half_k_; k += args.k) {
        const int64_t vector = ((2 * panel.block + half) * half_k_ + k) / lanes;
        args.a = operands.a + row * operands.a_layout.row_stride + vector * operands.a_layout.vector_stride;
        args.b = b + k * shape_.width();
        row_[is_first ? 0 : 1].entry()(&args);
        is_first = false;
      }
    }
  }
}

}  // namespace lathe
