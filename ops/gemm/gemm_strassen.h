#pragma once
// A matrix product by fewer products of blocks: what a step calls.
#include <optional>
#include <vector>

#include "ops/gemm/gemm_plan.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/strassen.h"

namespace lathe {

// The problem has blocks under this plan: one product, constant B, even parts.
bool can_use_strassen(const GemmProblem& problem, const GemmPlan& plan);

// No column of the constant is so much smaller than another that the other's rounding errors would show in its results.
bool has_even_columns(const MatrixView& b);

class StrassenProduct {
 public:
  // Throws JitError when the plan cannot be emitted. Requires: can_use_strassen().
  StrassenProduct(const GemmProblem& problem, const GemmPlan& plan);

  const GemmPlan& plan() const { return plan_; }
  int64_t packed_elements() const { return parts_ * core_.packed_elements(); }
  void pack(const MatrixView& matrix, float scale, float* packed) const;

  // Parts of k, one after the other, where the scheme needs C from one pass: only the last one makes the epilogue, and
  // C has no use before.
  int parts() const { return parts_; }
  const float* packed_part(const float* packed, int part) const { return packed + part * core_.packed_elements(); }
  // Sums of A's blocks: all threads fill them, then all read them. By rows, each thread fills what it reads.
  struct Sums {
    float* first;
    int64_t stride;  // elements from one piece's to the next one's, sums_of_piece() or more
  };
  int64_t pieces() const { return pieces_; }
  int64_t sums_of_piece() const;
  void sum(int part, const GemmOperands& operands, const Sums& sums, int share, int shares) const noexcept;
  int64_t scratch_elements() const { return core_.aside_elements(); }  // of each thread
  // operands.b is all that was packed.
  void run(int part, const GemmOperands& operands, const Sums& sums, int share, int shares) const noexcept;

 private:
  // Rows that are a product of their own: all of them, or those of one thread.
  struct Piece {
    const Strassen& core;
    int64_t row;
  };
  Piece piece_of(long number) const;
  void run_piece(int part, const GemmOperands& operands, const Strassen& core, const float* sums, int share,
                 int shares) const noexcept;
  void emit_finish();
  void finish(int part, const GemmOperands& operands, const float* sizes, Range rows, int64_t column,
              const float* aside) const noexcept;

  GemmProblem problem_;
  GemmPlan plan_;
  int parts_;
  int64_t pieces_;
  Strassen core_;                // of the pieces with the most rows
  std::optional<Strassen> low_;  // of the others, if they have fewer
  struct Finish {                // from what was gathered aside to C
    GemmTile rows, row;
  };
  std::vector<Finish> finish_;  // by part
};

}  // namespace lathe
