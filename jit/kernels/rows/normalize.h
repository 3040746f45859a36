#pragma once
// Normalization of dense float32 rows: mean and variance by two passes (or one), then scale and bias.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/common/int8_store.h"
#include "src/base/cpu.h"

namespace lathe {

struct NormalizePlan {
  Isa isa = Isa::avx2;
  bool centers = true;  // subtracts the mean (layer normalization); else the root mean square alone
  bool has_scale = false, has_bias = false;   // by column
  bool adds_skip = false, adds_bias = false;  // first: sum = from + skip (+ skip_bias, by column)
  bool writes_rows = true;                    // false: statistics only
  bool writes_statistics = false;
  // With `centers`: mean and variance by one pass, E[d^2] - E[d]^2 of the distances d to the first element of the row.
  // It loses digits where the row lies far from that, measured by its spread.
  bool joins_passes = false;
  // Of bytes: the rows are multiplied by a factor and stored as these. Else as float32.
  Int8Store store = {};
  bool operator==(const NormalizePlan&) const = default;
  bool stores_bytes() const { return lathe::stores_bytes(store); }
};
std::string to_string(const NormalizePlan& plan);

struct NormalizeArgs {
  const float* from;
  void* to;  // float32, or the bytes that the plan stores
  int64_t rows, columns;
  const float* scale;
  const float* bias;
  const float* skip;
  const float* skip_bias;
  float* sum;         // of the rows that adds_skip makes; may be `to`, of float32
  float* means;       // one a row
  float* deviations;  // 1 / sqrt(variance + epsilon), one a row
  float epsilon;
  float column_share;  // 1 / columns
  float factor = 1;    // of the rows that are stored as bytes
};
using NormalizeFn = void(const NormalizeArgs* args);
// Requires of a call: rows >= 1, columns >= 1. What a row becomes does not depend on the rows beside it.
Kernel<NormalizeFn> normalize_kernel(const NormalizePlan& plan);

}  // namespace lathe
