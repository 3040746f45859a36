#pragma once
// Weights of few bits to float32, as the kernel of a matrix product reads them: rows of `vecs * lanes(isa)` columns.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

// 1 + code / 2^bits of the code that stands for 0 where there are no offsets, 2^(bits - 1).
inline constexpr float kMiddleCode = 1.5F;

struct UnpackBitsPlan {
  Isa isa = Isa::avx2;
  int bits = 4;  // 2, 4 or 8
  int vecs = 1;
  bool has_offsets = false;
  bool operator==(const UnpackBitsPlan&) const = default;
};

std::string to_string(const UnpackBitsPlan& plan);

// out[r][c] = scale[c] * (1 + code[r][c] / 2^bits) + offset[c], for `groups` (>= 1) of 32 / bits rows. `codes`: for
// each group and column 32 bits, the first row in the lowest ones. `scales`: of all columns, then the offsets where the
// plan has them; else offset[c] = -kMiddleCode * scale[c].
using UnpackBitsFn = void(const void* codes, const void* scales, void* out, int64_t groups);
// Throws JitError on a plan out of range.
Kernel<UnpackBitsFn> unpack_bits_kernel(const UnpackBitsPlan& plan);

}  // namespace lathe
