#pragma once
// Sums and differences of four equally large matrices (the quadrants of one), several at once: each element of the four
// is read once. Operands of Strassen's products.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

using QuadrantSum = std::array<int, 4>;  // of each quadrant: 1, -1 or 0; not all 0

struct QuadrantSumsPlan {
  static constexpr int kMostSums = 7;
  Isa isa = Isa::avx2;
  std::vector<QuadrantSum> sums;  // 1 to kMostSums

  bool is_valid() const;
  std::string key() const;
};

struct QuadrantSumsArgs {
  std::array<const float*, 4> in;
  std::array<float*, QuadrantSumsPlan::kMostSums> out;  // as many as the plan has sums
  int64_t rows;                                         // >= 1; overwritten
  int64_t vectors;                                      // >= 1: of a row
  int64_t in_vector_bytes, out_vector_bytes;            // from one vector of a row to the next
  int64_t in_stride_bytes, out_stride_bytes;            // from row to row
};

using QuadrantSums = Kernel<void(QuadrantSumsArgs*)>;

// From the process's code cache. Throws JitError unless is_valid().
QuadrantSums quadrant_sums(const QuadrantSumsPlan& plan);

}  // namespace lathe
