#pragma once
// Attention over bytes with its kernels at hand: what a step calls. A block of rows at a time: its scores, all keys at
// once (a product of integers, stored as float32), their softmax rounded to bytes, and the product of these with V.
// Only the scores of one block are ever in memory, small enough to stay in the cache near a core.
#include <memory>
#include <vector>

#include "ops/int8/int8_pack.h"
#include "ops/int8/int8_product.h"
#include "ops/rows/byte_softmax.h"

namespace lathe {

// One of the two products.
struct Int8AttentionPart {
  Int8Problem problem;  // of all matrices and rows; bytes times bytes
  GemmPlan plan;        // of a block of rows
  std::vector<Int8Offsets> offsets;
};

struct Int8AttentionParts {
  Int8AttentionPart scores;  // float32
  Int8AttentionPart mix;     // what A is does not count: its rows are those that `softmax` stores
  ByteSoftmax softmax;
  int32_t row_factor = 0;  // of the sums of the softmax's rows that are taken off, where mix.problem.has_rows
  int64_t block_rows = 1;  // at most
};

// Rows of a block whose scores take no more than `bytes`, but as many as the kernels need to be fast.
int64_t int8_attention_rows(int64_t rows, int64_t keys, int64_t bytes);

struct Int8AttentionOperands {
  Int8Operands scores;      // c is not read
  Int8Operands mix;         // a and rows are not read
  void* scratch = nullptr;  // scratch_bytes() of this thread's own
};

class Int8Attention {
 public:
  // Throws JitError when its kernels cannot be emitted.
  explicit Int8Attention(Int8AttentionParts parts);

  // Of the softmax's bytes.
  static int64_t row_bytes(int64_t keys);
  static Int8Problem block_of(const Int8Problem& problem, int64_t rows);  // of one matrix, by one thread

  size_t scratch_bytes() const;
  void run(const Int8AttentionOperands& operands, int share, int shares) const noexcept;
  double flop() const;
  // Int8Product::changes().
  const std::vector<InputChange>& score_changes() const { return scores_[0]->changes(); }
  const std::vector<InputChange>& mix_changes() const { return mix_[0]->changes(); }

 private:
  struct Block;
  struct Scratch;
  Scratch scratch_at(void* memory) const;
  void run_block(const Int8AttentionOperands& operands, const Block& block, const void* next) const noexcept;

  Int8AttentionParts parts_;
  RowTiles blocks_;
  int64_t keys_;
  // By: is the block one row shorter.
  std::unique_ptr<const Int8Product> scores_[2], mix_[2];
  Kernel<SoftmaxFn> softmax_;
  NegatedRowSums sum_rows_;
};

}  // namespace lathe
