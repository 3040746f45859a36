#pragma once
// C[1 x n] = epilogue(A[1 x k] * B[k x n]) of a row with many zeros and a large constant B that comes from memory: rows
// of B that meet zeros are left there. Each thread takes the rows of its part of k; then what they have is added up.
#include <array>
#include <functional>
#include <optional>

#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/gemm/sparse_row.h"
#include "ops/gemm/gemm_pack.h"
#include "src/base/thread_team.h"

namespace lathe {

struct SparseRowProblem {
  int64_t n = 0, k = 0;
  Isa isa = Isa::avx2;
  int shares = 1;  // into which k is cut
  std::optional<GemmEpilogue> epilogue;
};

class SparseRowProduct {
 public:
  // Throws JitError.
  explicit SparseRowProduct(SparseRowProblem problem);

  const SparseRowProblem& problem() const { return problem_; }
  int64_t packed_words() const;
  // An element is off by 2^-20 of its column's largest at most. Requires: fits_bfp20(), by which
  // columns have units, too.
  // `has_packed` is told of the bytes now and then.
  void pack(const MatrixView& b, float scale, float* packed, const std::function<void(size_t bytes)>& has_packed) const;

  int64_t sum_elements() const { return strips_ * strip_columns(); }             // of each share: float32
  int64_t taken_elements() const { return 2 * most_taken() + strip_columns(); }  // of each thread: words

  // The sums of a share's part of k, in units of the columns. `taken`: taken_elements() of the thread's own.
  void multiply(const float* a, const float* packed, float* sums, float* taken, int share) const noexcept;
  // A share's part of the columns, once all have their sums, which lie one behind the other and are changed.
  // `inputs`: of the epilogue.
  void finish(const float* packed, float* sums, float* c, const std::array<const float*, kMaxGemmInputs>& inputs,
              int share) const noexcept;

 private:
  // Rows that were taken: their numbers, and what they are multiplied by.
  struct Taken {
    const int32_t* rows;
    const float* factors;
    int64_t count;
  };

  int64_t strip_columns() const { return groups_ * SparseRow::group_columns(problem_.isa); }
  int64_t row_words() const { return SparseRow::row_words(problem_.isa, groups_); }
  int64_t most_taken() const;
  void pack_group(const MatrixView& b, float scale, int64_t group, const Range& rows, float* packed) const;
  void add_strip(const Taken& taken, const float* strip, float* sums, float* part) const noexcept;
  void add_rows(const Taken& taken, int64_t begin, int64_t end, const float* strip, float* sums) const noexcept;

  SparseRowProblem problem_;
  int64_t strips_ = 1, groups_ = 1;  // of columns; of each strip
  SparseRowKernel kernel_;
  GemmTile finish_, finish_last_;  // of a whole group, and of the last one
};

}  // namespace lathe
