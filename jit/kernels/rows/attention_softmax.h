#pragma once
// The middle of attention, over rows of scores against some of the keys: running maxima and sums, so that the keys can
// come in blocks and no row is ever whole in memory.
//
//   top' = max(top, scores of the row);  scores = exp(scores - top')
//   factor = exp(top - top');  sum' = sum * factor + sum of the new scores
//
// What was gathered from earlier blocks is to be multiplied by `factor`. A row of which every score is -inf has a sum
// of 0.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct AttentionSoftmaxPlan {
  Isa isa = Isa::avx2;
  bool continues = false;  // false: the first block; tops and sums are written only, and there are no factors
  // The exponentials are stored as bfloat16, from each row's begin on, with zeros up to a whole vector behind them: a
  // row must have the room. Sums are of what was before rounding. Only on AVX512-BF16.
  bool narrows = false;
  bool operator==(const AttentionSoftmaxPlan&) const = default;
};
std::string to_string(const AttentionSoftmaxPlan& plan);

struct AttentionSoftmaxArgs {
  float* scores;
  int64_t rows, columns;         // >= 1
  int64_t stride_bytes;          // between rows
  float *tops, *sums, *factors;  // one for each row
};
using AttentionSoftmaxFn = void(const AttentionSoftmaxArgs* args);
// Throws JitError when the CPU type lacks what the plan needs.
Kernel<AttentionSoftmaxFn> attention_softmax_kernel(const AttentionSoftmaxPlan& plan);

}  // namespace lathe
