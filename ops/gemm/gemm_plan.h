#pragma once
// Which kernels make a float32 matrix product C[m x n] = epilogue(A[m x k] * B[k x n]), and in which order they run.
#include <optional>
#include <string>

#include "jit/kernels/gemm/gemm.h"
#include "ops/gemm/bilinear_scheme.h"
#include "ops/gemm/row_tiles.h"
#include "tuner/task.h"

namespace lathe {

enum class GemmOperandB : uint8_t {
  packed,      // ahead of time, in PanelFormat
  row_major,   // [k x n] with any row stride, known at run time only
  transposed,  // [n x k] with any row stride, known at run time only
};

struct GemmProblem {
  int64_t batches = 1, m = 0, n = 0, k = 0;
  GemmOperandB b = GemmOperandB::packed;
  std::optional<GemmEpilogue> epilogue;
  Isa isa = Isa::avx2;
  int threads = 1;
  int64_t a_stride = 0, b_stride = 0;  // of rows, in elements; 0: dense
  bool allows_strassen = false;        // whether the accuracy level does
  // In which a packed B may lie, too, by its elements and the accuracy level; f32: in no other.
  WeightFormat narrow = WeightFormat::f32;
  int longest_sum = 0;       // products in one float32 sum, at most; 0: any number
  bool accumulates = false;  // onto C as it was
  int zero_columns = 0;      // of a packed B, the last ones: fewer than a vector

  std::string key() const;                      // the tuning task's text
  bool has_few_rows() const { return m <= 8; }  // it waits for B
  double flop() const { return 2.0 * static_cast<double>(batches) * double(m) * double(n) * double(k); }
};

// columns: batches times panels. same_columns: each share has the same panels of all batches, so that what it adds to C
// in one product is added to its own sums of another; batches in a row whose B is the same use each panel together.
enum class GemmSplit : uint8_t { columns, rows, same_columns };

// Fewer products of blocks (gemm_strassen.h), by the plan's tile and block of k.
enum class FastProduct : uint8_t { none, strassen, hopcroft_kerr, packed_strassen };

// Requires: not none.
const BilinearScheme& scheme_of(FastProduct fast);

// What threads share: `batches` products of m rows by n columns, in panels and tiles.
struct SplitProblem {
  int64_t batches, m, n, panel_columns, tile_rows;
  int threads;
};
// By rows each thread reads the part of A that it wrote itself, likely, but streams all of B for fewer rows; by columns
// each reads all of A, and one may have a panel more.
GemmSplit choose_split(const SplitProblem& problem);

// Whether threads that share a product of blocks by columns make all sums of A's blocks each for itself. With two
// multipliers threads on one die lose by that, as they read each other's sums fast: 2 to 5 % at 128 rows and 2 threads,
// 16 at 512 rows and k 3,072. On two dies, where a line that the other one has read takes 8 ns to write again, they
// gain 4 to 7 %.
bool makes_own_sums(const GemmProblem& problem, bool are_far, const CoreRates& rates = core_rates());

struct GemmPlan {
  int rows = 14;  // of the largest tile; tiles are balanced
  int vecs = 2;   // panel width
  int k_unroll = 4;
  int k_block = 1024;   // at most; blocks are balanced
  int row_block = 512;  // rows for which a panel is used before the next one comes
  bool embed_broadcast = false;
  bool pack_b = false;  // a run-time B in row-major order: copy each panel first
  GemmSplit split = GemmSplit::columns;
  FastProduct fast = FastProduct::none;
  WeightFormat weights = WeightFormat::f32;  // of a packed B: narrower ones for few rows, which wait for memory

  bool operator==(const GemmPlan&) const = default;
  Candidate to_candidate() const;
  static GemmPlan from_candidate(const Candidate& candidate);
  std::string key() const;  // "gemm 14x2 k4 kb1024 rb512 columns"
};

// A product's rows by its plan; a split by rows gives all threads as many tiles.
RowTiles row_tiles(const GemmPlan& plan, int64_t rows, int threads);

// Rows that share a register for their last vector of columns, in panels of several vectors (GemmTilePlan::last_share).
int rows_that_share(const GemmProblem& problem, const CoreRates& rates = core_rates());

// Of the last vector of columns half is multiplied (GemmTilePlan::half_last).
bool halves_last(const GemmProblem& problem, const CoreRates& rates = core_rates());

// Weights that few rows read once are fetched ahead into L2: they come 1.1 to 1.5 times as fast. One row of float32
// loads enough at once by itself, on Zen 5 by vectors of 512 bits two rows, or one of 16 bits; on Zen 4 all do.
bool fetches_weights(const GemmProblem& problem, WeightFormat weights, const CoreRates& rates = core_rates());

// The plan with weights of 24 bits (jit/kernels/gemm/bfp24.h) instead, for tens of rows.
GemmPlan bfp24_plan(const GemmProblem& problem, GemmPlan plan);

// The rule for tasks that were never tuned.
GemmPlan default_gemm_plan(const GemmProblem& problem, const CoreRates& rates = core_rates());
// Can the plan's kernels be emitted for this problem?
bool is_valid(const GemmPlan& plan, const GemmProblem& problem);

// The tuned plan from `plans`, or the rule's.
GemmPlan choose_gemm_plan(const GemmProblem& problem, PlanSource& plans);

}  // namespace lathe
