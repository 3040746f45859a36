#pragma once
// Attention with its kernels at hand: what a step calls. A block of rows at a time: scores against a block of keys (a
// matrix product), their exponentials with running maxima and sums, and their product with V. Only the scores of one
// block of rows and keys are ever in memory, small enough to stay in cache.
//
// Of float, or of bfloat16 (uint16_t) on AVX512-BF16: both products then take pairs of bfloat16 and sum in float32;
// scores and their softmax are float32, the exponentials are rounded before they meet V, and the result is rounded
// once. Denormals count as zero.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/copy/transpose.h"
#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/rows/attention_softmax.h"
#include "ops/attention/run_sums.h"
#include "ops/gemm/gemm_pack.h"
#include "ops/gemm/row_tiles.h"
#include "src/base/thread_team.h"

namespace lathe {

struct AttentionProblem {
  int64_t matrices = 1, rows = 0, keys = 0, size = 0, value_size = 0;
  std::optional<GemmEpilogue> scores;  // of the products of Q and K
  // Which of its axes is dense in memory: of K the one along `size` (else that of the keys), of V that of the columns
  // (else that of the keys).
  bool k_by_rows = true, v_by_rows = true;
  // This input of the scores is a sum of two (run_sums.h): of `inputs` and of the addend.
  std::optional<size_t> summed_input;
  int64_t run = 0;
  bool zeroes_empty = false;  // the result of a row without keys (all masked, or NaN) is 0 instead of NaN
  Isa isa = Isa::avx2;
  int threads = 1;

  double flop() const;
};

struct AttentionPlan {
  int rows = 14;        // of the largest tile; tiles are balanced
  int vecs = 2;         // width of a panel of keys or of columns of V
  int block_tiles = 4;  // row tiles of one block
  int key_block = 512;  // keys of one block, at most; a multiple of the panel's width
};

// Where one matrix of the batch lies, in elements from the operands' beginnings. `addend`: the second of two inputs
// that are added up.
struct AttentionOffsets {
  int64_t q = 0, k = 0, v = 0, y = 0, addend = 0;
  std::array<int64_t, kMaxGemmInputs> inputs = {};
};

// In elements: between rows of Q and Y, between what is not dense of K and V, and between rows of the inputs of the
// scores' expression, whose columns are dense or all the same.
struct AttentionStrides {
  int64_t q = 0, k = 0, v = 0, y = 0, addend = 0;
  std::array<int64_t, kMaxGemmInputs> inputs = {};
};

template <class Element>
struct AttentionOperands {
  const Element *q = nullptr, *k = nullptr, *v = nullptr;
  Element* y = nullptr;
  std::array<const float*, kMaxGemmInputs> inputs = {};  // of the scores' expression
  const float* addend = nullptr;
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

template <class Element>
class AttentionProduct {
 public:
  using Operands = AttentionOperands<Element>;

  // Throws JitError when its kernels cannot be emitted: bfloat16 where the CPU lacks the instructions, or the columns
  // of Q and K are no pairs. Requires: no extent is 0.
  AttentionProduct(const AttentionProblem& problem, const AttentionStrides& strides,
                   std::vector<AttentionOffsets> offsets);

  int64_t scratch_elements() const;  // floats, for each thread
  void run(const Operands& operands, int share, int shares) const noexcept;
  std::string key() const;

 private:
  static constexpr bool kIsBf16 = sizeof(Element) == 2;
  static constexpr int64_t kElementBytes = sizeof(Element);
  static constexpr int64_t kGroup = 4 / kElementBytes;  // steps of k that kernels take at once, as 32 bits
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile scores[2];          // by: is it the last panel
    GemmTile mixed[kPhases][2];  // by phase, is it the last panel
  };
  struct Matrix;
  struct Block;
  class Ahead;

  void emit_kernels();
  GemmTilePlan tile_plan(int rows, int64_t columns, bool is_tail) const;
  GemmTilePlan mixed_plan(int rows, int phase, bool is_tail) const;
  bool has_tail(int64_t columns) const { return columns % format_.panel_columns != 0; }
  size_t input_count() const { return problem_.scores ? problem_.scores->inputs.size() : 0; }
  // What several blocks of keys add is not rounded in between.
  bool gathers() const { return kIsBf16 && key_blocks_ > 1; }
  int64_t gathered_stride() const;
  int64_t summed_stride() const { return problem_.summed_input ? score_stride_ : 0; }
  int64_t block_rows() const;  // at most, rounded up to whole cache lines
  Matrix matrix_at(const Operands& operands, const AttentionOffsets& at) const;
  void pack(const Matrix& matrix, const Range& keys) const noexcept;
  Block block_at(int64_t number, int64_t part) const;  // of the rows, and of their keys
  Ahead inputs_of(const Matrix& matrix, const Block& block, int64_t shares) const;
  // `next`: null or the matrix that is worked on after this one. `ahead` of it, where all its keys are packed at once.
  void run_rows(const Matrix& matrix, const Matrix* next, int64_t number, Ahead& ahead) const noexcept;
  void add_keys(Ahead& ahead, const Matrix& matrix, const Range& keys) const noexcept;
  void add_up(const Matrix& matrix, const Block& block) const noexcept;
  void score(const Matrix& matrix, const Block& block, Ahead& ahead, Ahead& inputs) const noexcept;
  void mix(const Matrix& matrix, const Block& block, Ahead& ahead) const noexcept;
  float* sums_at(const Matrix& matrix, const Block& block, int64_t row) const noexcept;
  void rescale(const Matrix& matrix, const Block& block) const noexcept;
  void finish_sums(const Matrix& matrix, const Block& block) const noexcept;
  void finish_rows(const Matrix& matrix, const Block& block) const noexcept;

  AttentionProblem problem_;
  AttentionPlan plan_;
  AttentionStrides strides_;
  std::vector<AttentionOffsets> offsets_;
  Isa isa_ = Isa::avx2;
  int lanes_ = 0;
  PanelFormat format_;  // of groups
  RowTiles tiles_;
  int64_t blocks_;  // of rows, of each matrix
  int64_t key_blocks_;
  bool packs_blocks_;     // of keys, each before it is used; else all keys before the first rows
  int64_t packed_keys_;   // at a time
  int64_t score_stride_;  // in floats
  std::array<Height, 2> heights_;
  Kernel<AttentionSoftmaxFn> softmax_[2];  // by: does it continue
  Kernel<TransposeFn> turn_;               // of a whole panel of keys
  std::optional<RunSums> sums_;
};

}  // namespace lathe
