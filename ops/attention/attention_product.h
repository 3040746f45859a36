#pragma once
// Attention with its kernels at hand: what a step calls. A block of rows at a time: scores against a block of keys (a
// matrix product), their exponentials with running maxima and sums, and their product with V. Only the scores of one
// block of rows and keys are ever in memory, small enough to stay in cache.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/copy/transpose.h"
#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/rows/attention_softmax.h"
#include "ops/gemm/gemm_pack.h"

namespace lathe {

struct AttentionProblem {
  int64_t matrices = 1, rows = 0, keys = 0, size = 0, value_size = 0;
  std::optional<GemmEpilogue> scores;  // of the products of Q and K
  // Which of its axes is dense in memory: of K the one along `size` (else that of the keys), of V that of the columns
  // (else that of the keys).
  bool k_by_rows = true, v_by_rows = true;
  bool zeroes_empty = false;  // the result of a row without keys (all masked, or NaN) is 0 instead of NaN
  Isa isa = Isa::avx2;
  int threads = 1;

  std::string key() const;
  double flop() const;
};

struct AttentionPlan {
  int rows = 14;        // of the largest tile; tiles are balanced
  int vecs = 2;         // width of a panel of keys or of columns of V
  int block_tiles = 4;  // row tiles of one block
  int key_block = 512;  // keys of one block, at most; a multiple of the panel's width

  std::string key() const;
};
AttentionPlan default_attention_plan(const AttentionProblem& problem);

// Where one matrix of the batch lies, in elements from the operands' beginnings.
struct AttentionOffsets {
  int64_t q = 0, k = 0, v = 0, y = 0;
  std::array<int64_t, kMaxGemmInputs> inputs = {};
};

// Strides in elements, between rows of Q and Y, and between what is not dense of K and V.
struct AttentionOperands {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  float* y = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, y_stride = 0;
  std::array<const float*, kMaxGemmInputs> inputs = {};    // of the scores' expression
  std::array<int64_t, kMaxGemmInputs> input_strides = {};  // between rows; columns are dense or all the same
  float* scratch = nullptr;                                // scratch_elements() of this thread's own
};

class AttentionProduct {
 public:
  // Throws JitError when the plan cannot be emitted. Requires: no extent is 0.
  AttentionProduct(const AttentionProblem& problem, const AttentionPlan& plan, std::vector<AttentionOffsets> offsets);

  int64_t scratch_elements() const;  // for each thread
  void run(const AttentionOperands& operands, int share, int shares) const noexcept;
  const AttentionPlan& plan() const { return plan_; }

 private:
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile scores[2];          // by: is it the last panel
    GemmTile mixed[kPhases][2];  // by phase, is it the last panel
  };
  struct Scratch;
  struct Block;
  class Ahead;

  void emit_kernels();
  GemmTilePlan tile_plan(int rows, int64_t columns, bool is_tail) const;
  bool has_tail(int64_t columns) const;
  int64_t row_of(int64_t tile) const;
  int64_t block_rows() const;  // at most, rounded up to whole cache lines
  Scratch scratch_of(float* memory) const;
  void pack(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch) const noexcept;
  void run_rows(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                int64_t first_tile, int64_t last_tile, Ahead& ahead) const noexcept;
  void score(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
             const Block& block, Ahead& ahead) const noexcept;
  void finish_sums(const Scratch& scratch, const Block& block) const noexcept;
  void clear_empty_rows(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                        const Block& block) const noexcept;
  void mix(const AttentionOperands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
           const Block& block, Ahead& ahead) const noexcept;

  AttentionProblem problem_;
  AttentionPlan plan_;
  std::vector<AttentionOffsets> offsets_;
  int lanes_;
  PanelFormat format_;
  int64_t tiles_, tall_tiles_;  // tiles of height_ rows come first, then those of one row less
  int height_;
  int64_t blocks_;  // of rows, of each matrix
  int64_t key_blocks_;
  int64_t score_stride_;  // in elements
  std::array<Height, 2> heights_;
  Kernel<AttentionSoftmaxFn> softmax_[2];  // by: does it continue
  Kernel<TransposeFn> turn_;               // of a whole panel of keys
};

}  // namespace lathe
