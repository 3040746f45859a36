#pragma once
// C[m x n] = epilogue(A[m x k] * B[k x n]) of bfloat16 on AVX512-BF16, B constant: the products are exact, their sums
// float32, and the result is rounded once. Denormals count as zero.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/gemm/gemm.h"
#include "ops/gemm/row_tiles.h"

namespace lathe {

struct Bf16Problem {
  int64_t m = 0, n = 0, k = 0;  // k even
  std::optional<GemmEpilogue> epilogue;
  int threads = 1;
};

struct Bf16Operands {
  const uint16_t* a = nullptr;                           // [m x k]
  const uint16_t* b = nullptr;                           // as pack() leaves it
  uint16_t* c = nullptr;                                 // [m x n]
  std::array<const float*, kMaxGemmInputs> inputs = {};  // of the epilogue: [n], or one value
};

class Bf16Product {
 public:
  // Throws JitError where the CPU lacks the instructions. Requires: no extent is 0.
  explicit Bf16Product(const Bf16Problem& problem);

  int64_t packed_elements() const;
  // From B's elements by their strides. Panels one behind the other; in each, pairs of rows, column by column.
  void pack(const uint16_t* b, int64_t row_stride, int64_t column_stride, uint16_t* packed) const noexcept;
  std::string packed_key() const;  // of the order in which B is packed
  std::string key() const;
  void run(const Bf16Operands& operands, int thread, int threads) const noexcept;

 private:
  struct Height {
    GemmTile kernels[2];  // by: is it the last panel
  };

  void emit_kernels();
  int64_t panel_columns() const;

  Bf16Problem problem_;
  int vecs_;  // of a panel
  int64_t panels_;
  RowTiles tiles_;
  int tail_vecs_, tail_lanes_;  // of the last panel; tail_lanes_ 0: whole vectors
  std::vector<Height> heights_;
};

}  // namespace lathe
