#pragma once
// The core of products by fewer products of blocks (ops/gemm/bilinear_scheme.h, one level), for matrix products and
// pointwise convolutions. The columns of A come in parts; each is one such product: sums of A's blocks are made ahead,
// and each product of blocks is added from registers to the blocks of C that it belongs to, with the epilogue when it
// is a block's last. Of an odd number of rows the last one is computed directly, or one in the middle twice.
//
// Error: up to about three times that of the plain product, 1e-6 of the largest output at k = 1,024. A sum of rows of
// very different size would give the small ones the error of the large ones, and rows of zeros results: so rows are
// first scaled to one size ("outside scaling": Ballard, Benson, Druinsky, Lipshitz, Schwartz, "Improving the numerical
// stability of fast matrix multiplication", 2016), and errors are relative to each row.
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jit/kernels/gemm/block_sums.h"
#include "jit/kernels/gemm/gemm.h"
#include "ops/gemm/bilinear_scheme.h"
#include "ops/gemm/gemm_pack.h"
#include "src/base/thread_team.h"

namespace lathe {

constexpr int kLongestSums = 4096;  // steps of k whose sums of A's blocks stay near enough to be made at once

struct StrassenShape {
  Isa isa = Isa::avx2;
  const BilinearScheme* scheme = &kStrassen222;
  int64_t m = 0, n = 0, k = 0;
  int k_block = 1024;
  int rows = 14, vecs = 2;
  bool embed_broadcast = false;
  bool aside = false;        // C is gathered in memory of each thread, dense and near, until it is complete
  bool scales_rows = false;  // the caller multiplies C's rows by row_sizes(); A's rows are contiguous
  bool in_blocks = false;    // A and C are stored in blocks of a vector's channels: [channels / lanes][m][lanes]
  bool reads_a = false;      // with in_blocks: products by a block of A alone read A itself, not a copy
  // Applied to C in place, where rows are even in number; else the caller's to apply to the last one.
  std::optional<GemmEpilogue> epilogue;

  int64_t width() const { return int64_t{vecs} * vector_lanes(isa); }  // columns of a panel
};

// n and the parts of k are cut into whole panels and vectors.
bool has_quadrants(const StrassenShape& shape);

// Into how many parts k is cut by k_block; 0: none have blocks of whole vectors.
int64_t parts_of_k(const StrassenShape& shape);

// Untuned: of a product whose A and C are stored in blocks.
StrassenShape shape_in_blocks(const BilinearScheme& scheme, Isa isa, int64_t m, int64_t n, int64_t k,
                              const CoreRates& rates = core_rates());

// Untuned: additions cost this core less than the multiplications that they save.
bool pays_strassen(Isa isa, const CoreRates& rates = core_rates());

// Sums of A take as long as so many columns of B, and visits to C as so many steps of k.
struct StrassenOverhead {
  double columns, steps;
};
// Untuned: the part of the plain product's time that is saved.
double strassen_gain(const BilinearScheme& scheme, int64_t n, int64_t k, const StrassenOverhead& overhead);

// A or C in memory, in elements.
struct StrassenMatrix {
  int64_t row_stride = 0;     // from row to row
  int64_t vector_stride = 0;  // from one vector of columns to the next
};

class Strassen {
 public:
  // Throws JitError unless has_quadrants() and the tile can be emitted.
  explicit Strassen(const StrassenShape& shape);

  const StrassenShape& shape() const { return shape_; }
  int64_t packed_elements() const { return packed_blocks() * block_k_ * shape_.width() * blocks_ * panels(); }
  void pack(const MatrixView& matrix, float scale, float* packed) const;
  std::string packing() const;  // names the order of what is packed

  // Sums of A's blocks: all threads fill them, then all read them.
  int64_t sums_elements() const;
  void sum(const float* a, const StrassenMatrix& a_layout, float* sums, int share, int shares) const noexcept;

  // What C's rows, [m], have to be multiplied by; of `sums` that sum() has filled. NaN: infinities or NaNs in A's row.
  const float* row_sizes(const float* sums) const { return sums + sums_of_blocks(); }

  struct Operands {
    const float *a, *sums, *b;
    float* c;
    std::span<const float* const> inputs;  // of the shape's epilogue, at C's first row and column
    StrassenMatrix a_layout, c_layout;
    const void* next_weights;  // what is streamed afterwards; may be null
    float* aside = nullptr;    // aside_elements() of this thread's own
  };
  // Of each thread; 0 unless C is gathered aside.
  int64_t aside_elements() const;
  // Between rows of what was gathered; the panels stand side by side.
  int64_t aside_stride() const;

  // Columns are split into shares. finish(row, rows, column, aside_row): C is complete for these rows and the panels
  // that begin at `column` and n / columns of blocks, twice that ... behind it, in place or aside from `aside_row`. Not
  // for rows to which the shape's epilogue was applied.
  template <class Finish>
  void run(const Operands& operands, int share, int shares, Finish finish) const noexcept {
    const Range mine = split_evenly(panels(), share, shares);
    // What is gathered aside is one panel: all blocks of k for it. Else a block's sums stay in L2 for all panels.
    const int64_t count = mine.end - mine.begin;
    for (int64_t i = 0; i < blocks_ * count; ++i) {
      const int64_t block = shape_.aside ? i % blocks_ : i / count;
      const int64_t panel = mine.begin + (shape_.aside ? i / blocks_ : i % count);
      run_panel(operands, {block, panel, mine});
      if (block + 1 == blocks_) finish_panel(panel * shape_.width(), finish);
    }
  }

 private:
  static constexpr int kMostHeight = 32;
  // All sums of a place are written together: they shall not fall into one set of the cache.
  static constexpr int64_t kSumsGap = 5 * 16;
  // Of rows: [0, half) above [bottom, bottom + half).
  struct Halves {
    int64_t half = 0, bottom = 0;
    // Tiles of `height` rows come first, then those of one row less.
    int64_t tiles = 0, tall = 0;
    int height = 0;
    int64_t tile_of(int64_t row_of_half) const;
    int64_t row_of(int64_t tile) const;
  };
  struct Panel {
    int64_t block, number;  // of k; of the left panel
    Range mine;             // this share's panels
  };

  template <class Finish>
  void finish_panel(int64_t column, Finish finish) const noexcept {
    const bool is_twice = rows_.bottom < rows_.half;  // a row in both halves
    const int64_t done = shape_.epilogue ? 2 * rows_.half : 0;
    if (done == shape_.m) return;
    if (!is_twice) return finish(done, shape_.m - done, column, int64_t{0});
    finish(int64_t{0}, rows_.half, column, int64_t{0});
    finish(rows_.half, shape_.m - rows_.half, column, rows_.half + 1);
  }

  const BilinearScheme& scheme() const { return *shape_.scheme; }
  int64_t products() const { return static_cast<int64_t>(scheme().products.size()); }
  int64_t panels() const { return shape_.n / scheme().columns / shape_.width(); }
  int64_t packed_blocks() const { return scheme().packs_sums ? products() : scheme().b_blocks(); }
  // From the sums for one product to those for the next.
  int64_t sums_stride() const { return rows_.half * block_k_ + kSumsGap; }
  int64_t sums_of_blocks() const { return blocks_ * sum_count_ * sums_stride(); }  // elements
  // The last row of an odd number, for which there is no sum: its copy behind the sums.
  bool has_last_row() const { return !shape_.aside && shape_.m % 2 != 0; }
  // The block of A that is the product's whole sum and is read where it lies; -1: none.
  int block_of_a(int64_t product) const;
  const RowScale* row_scales(const float* sums) const {
    return reinterpret_cast<const RowScale*>(row_sizes(sums) + shape_.m);
  }
  void find_sizes(Range rows, const float* a, int64_t row_stride, float* sums) const noexcept;
  // A block of A, of this block of k.
  const float* block_in_a(const float* a, const StrassenMatrix& a_layout, int64_t block, int number) const;
  // Addresses of one block of k, from this row of the halves on.
  BlockSumsArgs sums_from(int64_t block, int64_t row, const float* a, const StrassenMatrix& a_layout,
                          float* sums) const noexcept;
  void sum_tile(int64_t block, Range rows, const float* a, const StrassenMatrix& a_layout, float* sums) const noexcept;
  void copy_last_row(const float* a, const StrassenMatrix& a_layout, float* to) const noexcept;
  void sum_vectors(int64_t block, const float* a, const StrassenMatrix& a_layout, float* sums) const noexcept;
  void cut_rows();
  void make_folds();
  void emit_kernels();
  void emit_products(int height);
  size_t place_of(int64_t block) const;  // among Products
  GemmTilePlan tile_plan(int height) const;
  void run_panel(const Operands& operands, const Panel& panel) const noexcept;
  void run_product(int64_t product, const Operands& operands, const Panel& panel, GemmTileArgs& args) const noexcept;
  void give_inputs(const Operands& operands, const Panel& panel, int block, size_t fold,
                   GemmTileArgs& args) const noexcept;
  void run_last_row(const Operands& operands, const Panel& panel) const noexcept;
  const float* block_of_b(const Operands& operands, int64_t block, int64_t panel, int64_t number) const;
  const void* weights_behind(const Operands& operands, const Panel& panel) const;
  StrassenMatrix c_layout(const Operands& operands) const;
  // A row of a block of C, or of what stands for it aside.
  float* place_in_c(const Operands& operands, const Panel& panel, int block, int64_t row_of_half) const;
  int64_t column_of(const Panel& panel, int column_of_blocks) const;
  float* place_in_c_itself(const Operands& operands, const Panel& panel, int column_of_blocks, int64_t row) const;

  StrassenShape shape_;
  int64_t blocks_ = 0, block_k_ = 0;  // of k; rows of a block of B
  Halves rows_;
  BlockSums sums_;
  std::vector<int64_t> sum_of_;  // by product: the number of its sum; -1: A itself
  int64_t sum_count_ = 0;
  struct Fold {
    int block;  // of C
    GemmFold how;
    bool is_last;  // of the products
  };
  std::vector<std::vector<Fold>> folds_;  // by product
  // [first, later, last of several blocks of k][product]
  using Products = std::array<std::vector<GemmTile>, 3>;
  std::vector<Products> products_;  // by height
  std::array<GemmTile, 2> row_;     // the first to touch C, the others
};

}  // namespace lathe
