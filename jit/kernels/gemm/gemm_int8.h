#pragma once
// One register tile of a product of integers, repeated down the rows of one panel of B:
//
//   sum[i][j] = column_init[j] [+ row_init[i]] + A[rows*tiles x k] * B[k x cols],    cols <= vecs * lanes(isa)
//   C = epilogue(float(sum)), or the int32 sums themselves
//
// A is row-major with any row stride, in groups of k that fill 32 bits (Int8Dot); whole groups are read. B is packed:
// for each group vecs * lanes of 32 bits. Where products are crossed (Int8Dot), groups come in twos, and the caller
// takes off what that adds. Zero points are folded into column_init and row_init by the caller, bytes of B beyond k are
// zero. C and the epilogue's inputs are never touched outside their rows and columns.
#include <cstdint>
#include <optional>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/common/int8_store.h"
#include "jit/kernels/gemm/gemm.h"

namespace lathe {

inline constexpr int kMaxInt8Inputs = 5;

// Everything that changes the code; extents, strides and addresses are arguments.
struct GemmInt8TilePlan {
  Isa isa = Isa::avx2;
  Int8Dot dot = Int8Dot::pairs;
  int rows = 1;
  int vecs = 1;
  int k_unroll = 4;        // groups
  int prefetch_lines = 0;  // of the coming weights, for each k_unroll groups
  // Products of a batch prefetch one behind the other: each goes on where the one before stopped.
  bool prefetches_on = false;
  bool has_rows = false;  // adds row_init
  bool masked = false;    // the last vector of each row is partial: GemmInt8TileArgs::tail_lanes
  // So many groups beside each row of the tile before that is finished; GemmInt8TileArgs::k_groups is at least this
  // for all rows. AVX-512 and epilogues only. 0: tile after tile.
  int row_groups = 0;
  // Input 0: the sum as float32. Inputs are f32, i32, u8 or i8; the output is f32, i32, u8 or i8. None: C is int32.
  std::optional<GemmEpilogue> epilogue;
  // Of bytes: how the epilogue's float32 results are stored. Else they are stored as its output's type.
  Int8Store store = {};

  bool operator==(const GemmInt8TilePlan&) const = default;
  bool requantizes() const { return epilogue && stores_bytes(store); }
  DType output() const { return requantizes() ? store.dtype : epilogue ? epilogue->expression.output : DType::i32; }
  bool is_valid() const;
  std::string key() const;
};

// From one product of a batch to the next, in bytes.
struct GemmInt8Step {
  int64_t a, b, c;
  int64_t columns = 0, rows = 0;  // of the initial terms, when the plan has rows
};

struct GemmInt8TileArgs {
  const void* a;
  const void* b;
  void* c;
  int64_t k_groups;  // >= 0
  int64_t tiles;     // >= 1: row tiles, one below the other
  int64_t a_stride_bytes, c_stride_bytes;
  const int32_t* column_init;  // whole vectors
  const int32_t* row_init;     // of the first row, when the plan has rows
  // Where is_halved(): what is large in each k_unroll groups of a row tile, the last ones' fewer, of any row. Groups
  // that are added by fours, Int8Dot::u8s8_halved's of an even k_unroll, are counted from the first. One product only.
  const LargeBytes* large = nullptr;
  int64_t large_tile_bytes = 0;        // from row tile to row tile
  const void* prefetch;                // first line to prefetch; on return the first one not yet prefetched
  int64_t tail_lanes;                  // valid lanes of the last vector, when the plan is masked
  const void* inputs[kMaxInt8Inputs];  // of slots 1, 2, ...: at the tile's first row and column
  int64_t input_stride_bytes[kMaxInt8Inputs];
  // Products of the same shape one after the other, where the plan has none of row_groups and inputs; a, b, c, initial
  // terms and steps are moved. Each prefetches the next one's weights, the last one `prefetch_last` (unless the plan
  // has prefetches_on).
  int64_t products = 1;
  const GemmInt8Step* steps = nullptr;  // one fewer
  const void* prefetch_last = nullptr;
};

using GemmInt8Tile = Kernel<void(GemmInt8TileArgs*)>;

// From the process's code cache. Throws JitError unless is_valid().
GemmInt8Tile gemm_int8_tile(const GemmInt8TilePlan& plan);

}  // namespace lathe
