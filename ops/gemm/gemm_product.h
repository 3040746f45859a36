#pragma once
// A matrix product with its kernels at hand: what a step calls.
#include <array>
#include <span>
#include <vector>

#include "jit/kernels/copy/transpose.h"
#include "ops/gemm/gemm_pack.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/gemm/panel_walk.h"
#include "src/base/thread_team.h"

namespace lathe {

// Where one product of a batch lies, in elements from the operands' beginnings. For a packed B: in packed elements.
struct GemmOffsets {
  int64_t a = 0, b = 0, c = 0;
  std::array<int64_t, kMaxGemmInputs> inputs = {};
};

// Strides are in elements and concern rows (of the transposed matrix for GemmOperandB::transposed).
struct GemmOperands {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  std::array<const float*, kMaxGemmInputs> inputs = {};
  std::array<int64_t, kMaxGemmInputs> input_strides = {};
  const void* next_weights = nullptr;  // what the next step streams first; may be null
  float* scratch = nullptr;            // scratch_elements() of this thread's own
};

class GemmProduct {
 public:
  // Emits what the plan needs (or finds it in the code cache). `offsets`: one for each batch; empty: a single product.
  // Throws JitError when the plan cannot be emitted.
  GemmProduct(const GemmProblem& problem, const GemmPlan& plan, std::vector<GemmOffsets> offsets = {});

  PanelFormat format() const;
  // What so many rows of a panel take, in floats of each of its columns.
  int64_t packed_rows(int64_t k) const { return words_of(plan_.weights, k); }
  int64_t packed_elements() const;   // of one B, in floats
  int64_t scratch_elements() const;  // for each thread
  void run(const GemmOperands& operands, int share, int shares) const noexcept;
  // Where a share begins to read the packed weights `b`.
  const float* first_weights(const float* b, int share, int shares) const noexcept;
  const GemmPlan& plan() const { return plan_; }

 private:
  enum Phase { kOnly, kFirst, kMiddle, kLast, kPhases };
  struct Height {
    GemmTile kernels[kPhases][2][2];  // by phase, is it the last panel, does it prefetch
  };
  struct Panel;

  void emit_kernels();
  PanelWalk walk() const;
  GemmTilePlan tile_plan(int rows, int phase, bool is_tail, bool prefetches) const;
  // `offsets`: of the products that use the panel together.
  void run_panel(const GemmOperands& operands, std::span<const GemmOffsets> offsets, int64_t panel, const Range& tiles,
                 const void* next) const noexcept;
  void run_chunk(GemmTileArgs& args, const GemmOperands& operands, std::span<const GemmOffsets> offsets,
                 const Panel& panel, int phase) const noexcept;
  const float* packed_panel(const float* b, int64_t product, int64_t panel) const {
    return b + offsets_[static_cast<size_t>(product * together_)].b +
           panel * format().panel_columns * packed_rows(problem_.k);
  }
  int64_t words_to(int64_t k) const { return words_before(plan_.weights, k); }
  int64_t first_row_of(int64_t k_block) const;
  // Copies a panel of a run-time B into the scratch memory.
  void copy_panel(const GemmOperands& operands, const float* b, int64_t panel) const noexcept;
  // Panels that are to come. What few rows stream AMD's CPUs fetch ahead by themselves, and are only held up by being
  // asked for a whole panel ahead: 4 rows by 4096x4096 from memory 1.8 ms against 3.5, a row by 1024x1024 43 us against
  // 54. For the panel itself, see fetches_weights().
  bool can_prefetch() const {
    return problem_.b == GemmOperandB::packed && !problem_.has_few_rows() &&
           (plan_.weights == WeightFormat::f32 || plan_.weights == WeightFormat::bfp24);
  }

  size_t result_bytes() const {
    return sizeof(float) * offsets_.size() * static_cast<size_t>(problem_.m) * static_cast<size_t>(problem_.n);
  }

  GemmProblem problem_;
  GemmPlan plan_;
  std::vector<GemmOffsets> offsets_;
  int64_t together_ = 1;  // of one B
  int lanes_;
  int64_t panels_;
  RowTiles tiles_;
  int64_t k_blocks_, tiles_in_block_;
  int prefetch_lines_;
  int tail_vecs_, tail_lanes_;  // of the last panel; tail_lanes_ 0: whole vectors
  int last_share_ = 1;          // of its last vector, GemmTilePlan::last_share
  bool half_tail_ = false;      // GemmTilePlan::half_last
  bool has_tail_ = false;       // the last panel has code of its own
  std::array<Height, 2> heights_;
  Kernel<TransposeFn> turn_;  // of a whole panel of a transposed B
};

}  // namespace lathe
