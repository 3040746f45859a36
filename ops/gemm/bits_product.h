#pragma once
// C[m x n] = A[m x k] * B[k x n] (+ bias), where B has 2, 4 or 8 bits an element and a scale and maybe an offset for
// each block of rows and each column. B stays small in memory: for a few rows of A it becomes float32 in registers, for
// more a piece of a panel at a time does so in cache.
#include <array>
#include <string>

#include "jit/kernels/gemm/bits_rows.h"
#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/gemm/unpack_bits.h"
#include "ops/gemm/gemm_pack.h"

namespace lathe {

struct BitsProblem {
  int64_t m = 0, n = 0, k = 0;
  int bits = 4;
  int64_t block = 32;        // rows of B that share scales; a multiple of 16
  bool has_offsets = false;  // else the code 2^(bits - 1) stands for 0
  bool has_bias = false;
  Isa isa = Isa::avx2;
  int threads = 1;

  int64_t group() const { return 32 / bits; }  // rows in 32 bits of a column
  int64_t blocks() const { return (k + block - 1) / block; }
};

struct BitsOperands {
  const float* a = nullptr;
  const uint8_t* codes = nullptr;  // panels as PanelFormat says, of blocks() * block rows, in unpack_bits' order
  const float* scales = nullptr;   // panels; for each block those of the columns, then the offsets, as UnpackBitsFn's
  const float* bias = nullptr;     // [n]
  float* c = nullptr;
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

class BitsProduct {
 public:
  // Throws JitError. Requires: no extent is 0.
  explicit BitsProduct(const BitsProblem& problem);

  PanelFormat format() const { return format_; }
  int64_t scratch_elements() const;
  std::string key() const;
  void run(const BitsOperands& operands, int thread, int threads) const noexcept;

 private:
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile kernels[kPhases][2];  // by phase, is it the last panel
  };

  bool has_few_rows() const { return static_cast<bool>(rows_[1]); }
  void emit_kernels();
  void emit_rows_kernels();
  int64_t scales_of_block(int64_t width) const { return (problem_.has_offsets ? 2 : 1) * width; }
  const uint8_t* codes_at(const BitsOperands& operands, int64_t panel) const;
  const float* scales_at(const BitsOperands& operands, int64_t panel) const;
  void prepare_rows(const BitsOperands& operands) const noexcept;
  void run_rows(const BitsOperands& operands, int64_t panel) const noexcept;
  void run_panel(const BitsOperands& operands, int64_t panel) const noexcept;
  void multiply(const BitsOperands& operands, int64_t panel, int64_t k_begin, int64_t k_end, int phase) const noexcept;

  BitsProblem problem_;
  PanelFormat format_;
  int64_t panels_, tiles_, tall_tiles_;  // tiles of height_ rows come first, then those of one row less
  int height_;
  int64_t chunk_blocks_, chunks_;
  int tail_vecs_, tail_lanes_;  // of the last panel; tail_lanes_ 0: whole vectors
  std::array<Height, 2> heights_;
  Kernel<UnpackBitsFn> unpack_[2];  // by: is it the last panel
  Kernel<BitsRowsFn> rows_[2];      // the same; where there are few rows
};

}  // namespace lathe
