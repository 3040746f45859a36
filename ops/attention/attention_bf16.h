#pragma once
// Attention of bfloat16 on AVX512-BF16: as AttentionProduct, a block of rows at a time against blocks of keys. Both
// products take pairs of bfloat16 and sum in float32; scores and their softmax are float32, the exponentials are
// rounded to bfloat16 before they meet V, and the result is rounded once. Denormals count as zero.
#include <array>
#include <vector>

#include "ops/attention/attention_product.h"

namespace lathe {

// As AttentionOperands, of 16-bit elements.
struct AttentionBf16Operands {
  const uint16_t *q = nullptr, *k = nullptr, *v = nullptr;
  uint16_t* y = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, y_stride = 0;
  std::array<const float*, kMaxGemmInputs> inputs = {};
  std::array<int64_t, kMaxGemmInputs> input_strides = {};
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

class AttentionBf16 {
 public:
  // Throws JitError where the CPU lacks the instructions, or the columns of Q and K are no pairs. Requires: no extent
  // is 0.
  AttentionBf16(const AttentionProblem& problem, std::vector<AttentionOffsets> offsets);

  int64_t scratch_elements() const;  // floats, for each thread
  void run(const AttentionBf16Operands& operands, int share, int shares) const noexcept;
  std::string key() const;

 private:
  struct Height {
    GemmTile scores[2], mixed[2], mixed_later[2];  // by: is it the last panel; later blocks of keys add
  };
  struct Scratch;
  struct Block;

  void emit_kernels();
  GemmTilePlan tile_plan(int rows, int64_t columns, bool is_tail) const;
  bool has_tail(int64_t columns) const;
  int64_t row_of(int64_t tile) const;
  int64_t block_rows() const;
  int64_t y_stride() const;  // of what is gathered over several blocks of keys
  Scratch scratch_of(float* memory) const;
  void pack(const AttentionBf16Operands& operands, const AttentionOffsets& offsets,
            const Scratch& scratch) const noexcept;
  void run_rows(const AttentionBf16Operands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
                int64_t first_tile, int64_t last_tile) const noexcept;
  void score(const AttentionBf16Operands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
             const Block& block) const noexcept;
  void mix(const AttentionBf16Operands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
           const Block& block) const noexcept;
  void finish(const AttentionBf16Operands& operands, const AttentionOffsets& offsets, const Scratch& scratch,
              const Block& block) const noexcept;

  AttentionProblem problem_;
  AttentionPlan plan_;
  std::vector<AttentionOffsets> offsets_;
  PanelFormat format_;          // of pairs
  int64_t tiles_, tall_tiles_;  // tiles of height_ rows come first, then those of one row less
  int height_;
  int64_t blocks_, key_blocks_;  // of rows, of keys
  int64_t score_stride_;         // in floats
  int64_t key_pairs_;
  std::array<Height, 2> heights_;
  Kernel<AttentionSoftmaxFn> softmax_[2];  // by: does it continue
  Kernel<TransposeFn> turn_;               // of a whole panel of keys
};

}  // namespace lathe
