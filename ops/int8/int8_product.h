#pragma once
// A product of integers C[m x n] = epilogue(A[m x k] * B[k x n] + zero point terms) with its kernels at hand.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/gemm/gemm_int8.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/gemm/panel_walk.h"
#include "ops/int8/int8_lower.h"

namespace lathe {

struct Int8Problem {
  int64_t batches = 1, m = 0, n = 0, k = 0;
  Int8Dot dot = Int8Dot::pairs;
  bool has_rows = false;  // a term for each row
  std::optional<GemmEpilogue> epilogue;
  std::vector<bool> may_change = {};  // by slot of the epilogue: Int8Product::changes() may ask for another input
  Isa isa = Isa::avx2;
  int threads = 1;
  int64_t a_stride = 0;  // bytes between rows; 0: dense
  // Of run_one_panel(): B lies in a cache, and what is prefetched meanwhile, bit by bit, comes behind all of it.
  bool is_b_near = false;

  int64_t groups() const { return groups_of(dot, k); }
  std::string key() const;  // the tuning task's text
  double flop() const { return 2.0 * static_cast<double>(batches) * double(m) * double(n) * double(k); }
};

// The rule for tasks that were never tuned, and the tuned plan or the rule's. k_block, embed_broadcast and pack_b of
// GemmPlan have no meaning here.
GemmPlan default_int8_plan(const Int8Problem& problem, const CoreRates& rates = core_rates());
TuningTask int8_tuning_task(const Int8Problem& problem);
GemmPlan choose_int8_plan(const Int8Problem& problem, PlanSource& plans);
bool is_valid(const GemmPlan& plan, const Int8Problem& problem);
// Of Int8Dot::u8s8_halved and s8u8_halved: parts of a row that have their own code where bytes are large, of k_unroll
// groups each.
int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan);
std::string int8_plan_text(const GemmPlan& plan, Int8Dot dot);  // "gemm int8 u8s8 14x2 k4 rb512 columns"

// Where one product of a batch lies. A, B, C and inputs in bytes, the initial terms in elements.
struct Int8Offsets {
  int64_t a = 0, b = 0, c = 0, columns = 0, rows = 0;
  std::array<int64_t, kMaxInt8Inputs> inputs = {};
};

struct Int8Operands {
  const void* a = nullptr;
  const void* b = nullptr;  // packed
  void* c = nullptr;
  const int32_t* columns = nullptr;
  const int32_t* rows = nullptr;
  const LargeBytes* large = nullptr;   // where is_halved(): [row tile][large_parts()]
  int64_t a_stride = 0, c_stride = 0;  // bytes
  std::array<const void*, kMaxInt8Inputs> inputs = {};
  std::array<int64_t, kMaxInt8Inputs> input_strides = {};  // bytes from row to row
  const void* next_weights = nullptr;                      // what the next step streams first; may be null
};

class Int8Product {
 public:
  // `offsets`: one for each batch; empty: a single product. Throws JitError when the plan cannot be emitted.
  Int8Product(const Int8Problem& problem, const GemmPlan& plan, std::vector<Int8Offsets> offsets = {});
  void run(const Int8Operands& operands, int share, int shares) const noexcept;
  // Of int32 sums, with the same initial terms where there are none of rows: one panel of the columns, in each product
  // of the batch. C has no other columns.
  void run_one_panel(const Int8Operands& operands, int64_t panel) const noexcept {
    run_one_panel(operands, panel, packed_panel(operands, 0, panel));
  }
  // The same, of a panel that lies elsewhere: in the first product of the batch at `b`, from which the others are as
  // far as Int8Offsets say. Returns how far Int8Operands::next_weights have been prefetched, where B is near.
  const void* run_one_panel(const Int8Operands& operands, int64_t panel, const void* b) const noexcept;
  // By slot of the epilogue, or none: what its input must become before it is given to run().
  const std::vector<InputChange>& changes() const { return changes_; }

 private:
  int groups_beside_rows() const;
  void plan_prefetches();
  void make_kernels();
  GemmInt8TilePlan tile_plan(int rows, bool is_tail, bool prefetches) const;
  // `next`: what is streamed after this panel; null: what lies behind it.
  void run_panel(const Int8Operands& operands, const PanelWalk::Visit& visit, const void* next) const noexcept;
  const char* packed_panel(const Int8Operands& operands, int64_t product, int64_t panel) const;
  bool is_tail_panel(int64_t panel) const;
  int64_t bytes_of_panel(bool is_tail) const;

  Int8Problem problem_;
  GemmPlan plan_;
  std::optional<GemmEpilogue> epilogue_;  // as the kernels take it: bytes are made by `store_`
  Int8Store store_;
  std::vector<InputChange> changes_;
  std::vector<Int8Offsets> offsets_;
  std::vector<GemmInt8Step> steps_;  // from each of them to the next
  int lanes_;
  int64_t groups_;  // of k
  int64_t panels_;
  RowTiles tiles_;
  int64_t tiles_in_block_;
  int prefetch_lines_ = 0;
  int64_t prefetching_tiles_[2] = {};  // by: is the last panel; how many prefetch the next one
  int row_groups_ = 0;                 // GemmInt8TilePlan::row_groups
  int tail_vecs_, tail_lanes_;         // of the last panel; tail_lanes_ 0: whole vectors
  GemmInt8Tile kernels_[2][2][2];      // by: is one row shorter, is the last panel, prefetches
};

}  // namespace lathe
