#pragma once
// C[m x n] = A[m x k] * B[k x n] (+ bias), where B has 4 or 8 bits an element and a scale and an offset for each block
// of rows and each column. B stays small in memory: a piece of a panel at a time is made float32 in cache, for all rows
// of A.
#include <array>
#include <string>

#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/gemm/unpack_bits.h"
#include "ops/gemm/gemm_pack.h"

namespace lathe {

struct BitsProblem {
  int64_t m = 0, n = 0, k = 0;
  int bits = 4;
  int64_t block = 32;  // rows of B that share scales; even
  bool has_bias = false;
  Isa isa = Isa::avx2;
  int threads = 1;

  int64_t blocks() const { return (k + block - 1) / block; }
};

struct BitsOperands {
  const float* a = nullptr;
  const uint8_t* codes = nullptr;  // panels as PanelFormat says, of blocks() * block rows, in unpack_bits' order
  const float* scales = nullptr;   // panels; for each block the columns' scales, then their offsets
  const float* bias = nullptr;     // [n]
  float* c = nullptr;
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

class BitsProduct {
 public:
  // Throws JitError. Requires: no extent is 0.
  explicit BitsProduct(const BitsProblem& problem);

  PanelFormat format() const { return format_; }
  int64_t scratch_elements() const { return chunk_blocks_ * problem_.block * format_.panel_columns; }
  std::string key() const;
  void run(const BitsOperands& operands, int thread, int threads) const noexcept;

 private:
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile kernels[kPhases][2];  // by phase, is it the last panel
  };

  void emit_kernels();
  void run_panel(const BitsOperands& operands, int64_t panel) const noexcept;
  void multiply(const BitsOperands& operands, int64_t panel, int64_t k_begin, int64_t k_end, int phase) const noexcept;

  BitsProblem problem_;
  PanelFormat format_;
  int64_t panels_, tiles_, tall_tiles_;  // tiles of height_ rows come first, then those of one row less
  int height_;
  int64_t chunk_blocks_, chunks_;
  int tail_vecs_, tail_lanes_;  // of the last panel; tail_lanes_ 0: whole vectors
  std::array<Height, 2> heights_;
  Kernel<UnpackBitsFn> unpack_[2];  // of the last panel, too
};

}  // namespace lathe
