#pragma once
// A matrix product by fewer products of blocks: what a step calls.
#include <optional>
#include <string>
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
  // Names the order of what is packed, which is the same for all numbers of rows and ways to share them.
  std::string packing() const { return core_.packing(); }

  // The rows of A come in waves, so that the sums of its blocks stay near: each wave has two rounds, in which all
  // threads make sums and then read them. So has each part of k within a wave, where the scheme needs C from one pass:
  // only the last part makes the epilogue, and C has no use before.
  int rounds() const { return 2 * waves_ * parts_; }
  bool visits_once() const { return parts_ == 1; }  // each element of C

  // Each thread may have sums of its own: of its rows, or all of a wave. Else the threads share them.
  bool has_own_sums() const { return owners(true) > 1; }
  int64_t sums_elements() const;  // of one owner
  struct Sums {
    float* first;
    int64_t stride;  // elements from one owner's to the next one's, sums_elements() or more
  };
  int64_t scratch_elements() const { return core_.aside_elements(); }  // of each thread
  // operands.b is all that was packed. `are_far`: as StepArgs has it; the results are the same. Requires: all shares of
  // the rounds before have ended.
  void run(int round, const GemmOperands& operands, const Sums& sums, int share, int shares, int thread,
           bool are_far) const noexcept;

 private:
  // Rows that are a product of their own.
  struct Piece {
    const Strassen& core;
    int64_t row;
  };
  // Of a share's work: a group of a piece's columns, or of its rows, which sums are made of.
  struct Item {
    long piece;  // of the wave
    int group, groups;
  };
  struct Turn {
    int wave, part;  // of k
    int64_t owners;  // of sums
  };
  int64_t owners(bool are_far) const;
  template <class Body>
  static void for_items(long count, int share, int shares, Body body);
  Piece piece_of(int wave, long number) const;
  const float* part_of(const float* packed, int part) const { return packed + part * core_.packed_elements(); }
  void sum(Turn turn, const GemmOperands& operands, const Sums& sums, int share, int shares) const noexcept;
  void multiply(Turn turn, const GemmOperands& operands, const Sums& sums, int share, int shares,
                int thread) const noexcept;
  void multiply_piece(int part, const GemmOperands& operands, const Strassen& core, const float* sums,
                      const Item& item) const noexcept;
  void emit_finish();
  void finish(int part, const GemmOperands& operands, const float* sizes, Range rows, int64_t column,
              const float* aside) const noexcept;

  GemmProblem problem_;
  GemmPlan plan_;
  int parts_;
  int64_t together_;  // pieces of a wave
  int waves_;
  Strassen core_;                // of the pieces with the most rows
  std::optional<Strassen> low_;  // of the others, if they have fewer
  struct Finish {                // from what was gathered aside to C
    GemmTile rows, row;
  };
  std::vector<Finish> finish_;  // by part
};

}  // namespace lathe
