#pragma once
// The core of products with seven instead of eight half-sized ones (Strassen, one level), for matrix products and
// pointwise convolutions. The rows of A come in blocks, its columns in others; each pair is one product by quadrants:
// sums of A's quadrants are made ahead, those of B's while the kernel loads them (packed weights are as large as ever),
// and each half-sized product is added from registers to the one or two quadrants of C that it belongs to. A last odd
// row is computed directly.
//
// Error: up to about three times that of the plain product, 1e-6 of the largest output at k = 1,024.
#include <array>
#include <vector>

#include "jit/kernels/gemm.h"
#include "jit/kernels/quadrant_sums.h"
#include "ops/gemm_pack.h"
#include "src/base/thread_team.h"

namespace lathe {

struct StrassenShape {
  Isa isa = Isa::avx2;
  int64_t m = 0, n = 0, k = 0;
  int64_t row_block = 1 << 20;  // rows for which all panels of B are used before the next ones come
  int k_block = 1024;
  int rows = 14, vecs = 2;
  bool embed_broadcast = false;
  bool aside = false;      // C is gathered in memory of each thread, dense and near, until it is complete
  bool in_blocks = false;  // A and C are stored in blocks of a vector's channels: [channels / lanes][m][lanes]

  int64_t width() const { return int64_t{vecs} * vector_lanes(isa); }  // columns of a panel
};

// n and the blocks of k have halves of whole panels and vectors.
bool has_quadrants(const StrassenShape& shape);

// Untuned: this CPU adds beside its multiply-adds, so that B's sums cost nothing.
bool pays_strassen();

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
  int64_t packed_elements() const { return shape_.k * shape_.n; }
  void pack(const MatrixView& matrix, float scale, float* packed) const;

  // Sums of A's quadrants: all threads fill them, then all read them.
  int64_t sums_elements() const;
  void sum(const float* a, const StrassenMatrix& a_layout, float* sums, int share, int shares) const noexcept;

  struct Operands {
    const float *a, *sums, *b;
    float* c;
    StrassenMatrix a_layout, c_layout;
    const void* next_weights;  // what is streamed afterwards; may be null
    float* aside = nullptr;    // aside_elements() of this thread's own
  };
  // Of each thread; 0 unless C is gathered aside.
  int64_t aside_elements() const;
  // Between rows of what was gathered; the right panel stands beside the left one.
  int64_t aside_stride() const;

  // Columns are split into shares. finish(row, rows, column): C is complete for these rows and the panels that begin
  // at `column` and n / 2 behind it, in place or aside.
  template <class Finish>
  void run(const Operands& operands, int share, int shares, Finish finish) const noexcept {
    const Range mine = split_evenly(panels(), share, shares);
    for (size_t part = 0; part < parts_.size(); ++part) {
      // What is gathered aside is one panel: all blocks of k for it. Else a block's sums stay in L2 for all panels.
      const int64_t count = mine.end - mine.begin;
      for (int64_t i = 0; i < blocks_ * count; ++i) {
        const int64_t block = shape_.aside ? i % blocks_ : i / count;
        const int64_t panel = mine.begin + (shape_.aside ? i / blocks_ : i % count);
        run_panel(operands, {parts_[part], block, panel, mine, part + 1 == parts_.size()});
        if (block + 1 < blocks_) continue;
        const int64_t last = part + 1 == parts_.size() ? shape_.m : parts_[part].row + 2 * parts_[part].half;
        finish(parts_[part].row, last - parts_[part].row, panel * shape_.width());
      }
    }
  }

 private:
  static constexpr int kProducts = 7;
  static constexpr int kMostHeight = 32;
  struct Part {  // a block of rows: [row, row + half) above [row + half, row + 2 * half)
    int64_t row = 0, half = 0;
    // Tiles of `height` rows come first, then those of one row less.
    int64_t tiles = 0, tall = 0;
    int height = 0;
    int64_t sums = 0;  // elements from the beginning of the sums
    int64_t tile_of(int64_t row_of_half) const;
    int64_t row_of(int64_t tile) const;
  };
  struct Panel {
    const Part& part;
    int64_t block, number;  // of k; of the left panel
    Range mine;             // this share's panels
    bool is_last_part;
  };

  int64_t panels() const { return shape_.n / 2 / shape_.width(); }
  void sum_tile(const Part& part, int64_t block, Range rows, const float* a, const StrassenMatrix& a_layout,
                float* sums) const noexcept;
  void make_parts();
  void emit_kernels();
  void emit_products(int height);
  void run_panel(const Operands& operands, const Panel& panel) const noexcept;
  void run_product(int product, const Operands& operands, const Panel& panel, GemmTileArgs& args) const noexcept;
  void run_last_row(const Operands& operands, const Panel& panel) const noexcept;
  const float* quadrant_of_b(const Operands& operands, int64_t block, int64_t panel, int q) const;
  const void* weights_behind(const Operands& operands, const Panel& panel) const;
  StrassenMatrix c_layout(const Operands& operands) const;
  // A row of the panel on the left (side 0) or the right.
  float* place_in_c(const Operands& operands, const Panel& panel, int side, int64_t row) const;

  StrassenShape shape_;
  int64_t blocks_ = 0, half_k_ = 0;  // of k
  std::vector<Part> parts_;
  QuadrantSums sums_;
  using Products = std::array<std::array<GemmTile, kProducts>, 2>;  // [is it a later block of k][product]
  std::vector<Products> products_;                                  // by height
  std::array<GemmTile, 2> row_;                                     // the first to touch C, the others
};

}  // namespace lathe
