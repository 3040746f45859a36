#pragma once
// One register tile of a float32 matrix product, repeated down the rows of one panel of B:
//
//   C[rows*tiles x cols] = epilogue( [C +] A[rows*tiles x k] * B[k x cols] ),   cols <= vecs * lanes(isa)
//
// A and C are row-major with any row stride and are never touched outside their rows and columns. B is either packed
// (step k is vecs * lanes consecutive floats, zero-padded) or read in place (row-major, any row stride).
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/gemm/weight_format.h"
#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

// How one extra input of the epilogue (slot 1, 2, ...) lies over the tile; its row stride is an argument (0: the same
// for all rows). With folds `columns` and `uniform` are the same for all rows.
enum class GemmInputAccess : uint8_t {
  columns,  // one value per column, consecutive
  uniform,  // one value for all columns
  alike,    // with folds only: as the matrix that is complete, which lies GemmTileArgs::alike_bytes before it
};

struct GemmEpilogue {
  Expression expression;                // input 0: the product; all inputs and the output float32
  std::vector<GemmInputAccess> inputs;  // of slot 1, 2, ...
  bool operator==(const GemmEpilogue&) const = default;
};
std::string to_string(const GemmEpilogue& epilogue);

// What becomes of a product that is one term of several matrices: it is stored into each, added or subtracted.
// take: the matrix is added to the product instead, for all that follow.
enum class GemmFold : uint8_t { none, set, add, subtract, take };

// Everything that changes the code; extents, strides and addresses are arguments.
struct GemmTilePlan {
  Isa isa = Isa::avx2;
  int rows = 1;
  int vecs = 1;
  int k_unroll = 4;
  int longest_sum = 0;           // steps of k, a multiple of k_unroll; partial sums are added up. 0: any number
  int prefetch_lines = 0;        // of the coming weights, for each k_unroll steps
  bool embed_broadcast = false;  // FMA with a broadcast memory operand: no register for A (AVX-512)
  bool accumulate = false;       // add C, as it was before
  bool starts_at_a = false;      // add A's rows, as wide as C's: with k = 0 the epilogue from A to C
  // A comes tile by tile: a vector's length of k of each row, one row behind the other, then the next length,
  // GemmTileArgs::a_chunk_bytes behind. k is a multiple of it and k_unroll is it. What is soon read is fetched ahead,
  // also a little behind the last tile.
  bool a_in_chunks = false;
  // Before each tile: so many rows of so many matrices from GemmTileArgs::fetch, as wide as C's, soon to be written.
  int fetch_rows = 0, fetch_matrices = 0;
  // Before each tile: its part of C, for writing, and of inputs of the epilogue that have a row for each row.
  bool fetches_ends = false;
  // So many rows share a register for their sums of the last vector, of which then at most 8 or 4 columns are read: 2
  // or 4 (AVX-512, two vectors or more). The others are zeros in C.
  int last_share = 1;
  // At most half of the last vector's lanes are columns, and half a vector is multiplied (AVX-512); the others are
  // zeros in C.
  bool half_last = false;
  bool masked = false;      // the last vector of each row is partial: GemmTileArgs::tail_lanes
  bool b_in_place = false;  // B by row stride instead of packed
  // A and C are bfloat16, the epilogue's inputs float32. A's elements come in pairs, and so do B's rows: step k has a
  // pair of each column; k counts pairs (AVX512-BF16).
  bool bf16 = false;
  bool widens = false;  // with bf16: C is float32
  // Of a packed B. With bfp20 and bfp24 k is a multiple of their groups, and k_unroll is not read or is a group;
  // GemmTileArgs::b_scales are bfp24's.
  WeightFormat weights = WeightFormat::f32;
  bool weights_to_l2 = false;  // they are fetched ahead of their use, without prefetch_lines
  std::optional<GemmEpilogue> epilogue;
  // Into C and into further matrices, GemmTileArgs::inputs[0], [1], [2], all unmasked. All none: the product goes to C
  // alone, by what stands above.
  static constexpr int kMostFolds = 4;
  std::array<GemmFold, kMostFolds> folds = {};  // none follows the last one
  std::array<bool, kMostFolds> completes = {};  // these matrices are complete with it: the epilogue is applied to them
  bool fetches_folds = false;  // before each tile: what is set, for writing; what is alike, for reading
  bool apart = false;          // with folds: the vectors of a row lie GemmTileArgs::c_vector_bytes apart; at most four
  int b_sign = 0;  // 1, -1: B plus or minus a second packed B, GemmTileArgs::b_second_bytes behind the first

  bool operator==(const GemmTilePlan&) const = default;
  bool folds_product() const { return folds[0] != GemmFold::none; }
  int fold_count() const;
  // Few rows: A's broadcasts stay in registers and B is streamed through one. Many: a row of B stays, A is broadcast
  // one by one.
  bool holds_a() const;
  int work_registers() const;  // vectors beside the sums
  bool is_valid() const;
  std::string key() const;

 private:
  bool has_fitting_epilogue() const;
};

inline constexpr int kMaxGemmInputs = 8;

struct GemmTileArgs {
  const float* a;
  const float* b;
  float* c;
  int64_t k;      // >= 0
  int64_t tiles;  // >= 1: row tiles, one below the other
  int64_t a_stride_bytes, b_stride_bytes, c_stride_bytes;
  int64_t a_chunk_bytes, b_second_bytes, c_vector_bytes;
  const float* b_scales;
  const void* prefetch;  // first line to prefetch; on return the first one not yet prefetched
  float* fetch;          // rows of the first matrix to fetch for writing, if the plan does so; overwritten
  int64_t fetch_left;    // rows that are left; overwritten
  int64_t fetch_stride_bytes, fetch_matrix_bytes;
  int64_t tail_lanes;                   // valid lanes of the last vector, when the plan is masked
  const float* inputs[kMaxGemmInputs];  // of slots 1, 2, ...: at the tile's first row and column
  int64_t input_stride_bytes[kMaxGemmInputs];
  // With folds, by slot: from a matrix to what is alike; and for each matrix the others, at its first column.
  int64_t alike_bytes[kMaxGemmInputs];
  const float* fold_inputs[GemmTilePlan::kMostFolds][kMaxGemmInputs];
};

using GemmTile = Kernel<void(GemmTileArgs*)>;

// From the process's code cache. Throws JitError unless is_valid().
GemmTile gemm_tile(const GemmTilePlan& plan);

}  // namespace lathe
