#pragma once
// A matrix product with few columns, or few rows, as dot products of rows (jit/kernels/gemm/row_dots.h): the short side
// is copied into the kernel's order, at most eight vectors of k for each step, and the rows of the long side are read
// as they lie.
#include <array>
#include <vector>

#include "jit/kernels/gemm/row_dots.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/row_tiles.h"
#include "src/base/thread_team.h"

namespace lathe {

// In terms of the kernel: `rows` of the long side times `columns` of the short one. Strides are in elements.
struct DotProblem {
  Isa isa = Isa::avx2;
  int64_t rows = 0, columns = 0, k = 0;
  int64_t long_stride = 0;                              // between rows of the long side
  int64_t short_k_stride = 0, short_column_stride = 0;  // of the short side
  int64_t c_row = 0, c_column = 0;
  Expression epilogue;                                // nodes empty: none
  std::vector<std::array<int64_t, 2>> input_strides;  // of slot 1, 2, ... along rows and columns

  bool is_valid() const;
};

// Where one product of a batch lies, in elements.
struct DotOffsets {
  int64_t of_long = 0, of_short = 0, c = 0;
  std::array<int64_t, kMaxGemmInputs> inputs = {};
};

struct DotOperands {
  const float* of_long = nullptr;
  const float* of_short = nullptr;  // where the product copies nothing: in the kernel's order
  float* c = nullptr;
  std::array<const float*, kMaxGemmInputs> inputs = {};
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

class DotProduct {
 public:
  // `is_packed`: the short side comes in the kernel's order, pack() having made it. Throws JitError.
  DotProduct(DotProblem problem, bool is_packed, std::vector<DotOffsets> offsets);

  int64_t packed_elements() const;   // of one short side
  int64_t scratch_elements() const;  // for each thread
  void pack(const float* from, float scale, float* to) const noexcept;
  void run(const DotOperands& operands, int share, int shares) const noexcept;
  std::string text() const { return tall_.text; }

 private:
  struct Height {
    RowDots kernel;
    std::string text;
  };
  Height emit(int rows) const;
  void run_tiles(const DotOperands& operands, const DotOffsets& at, const float* packed, Range tiles) const noexcept;

  DotProblem problem_;
  bool copies_;
  std::vector<DotOffsets> offsets_;
  RowTiles tiles_;
  Height tall_, low_;
};

// Cycles of a core, roughly, with all operands near: to choose between this and products of panels.
double dot_product_cycles(Isa isa, int64_t rows, int64_t columns, int64_t k);

}  // namespace lathe
