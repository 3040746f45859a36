#pragma once
// Into which stages a reduction falls; and those of other types than float32 along one axis, as plain loops that the
// compiler turns into vector code: of int32 and int64 modulo 2^bits, of bytes and bool by order, of float64.
#include <cstdint>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

struct ReductionStage {
  int64_t outer = 1, extent = 1, inner = 1;
};
// Neighbouring axes of one kind are merged, then one stage for each group of reduced axes, innermost first.
std::vector<ReductionStage> reduction_stages(const Dims& dims, const std::vector<bool>& reduced);

enum class PlainReduce : uint8_t { sum, product, maximum, minimum };

bool has_plain_reduction(DType dtype, PlainReduce op);
// [outer][extent][inner] at `from` to [outer][inner] at `to`. Requires: has_plain_reduction(dtype, op), extent > 0.
void reduce_plainly(DType dtype, PlainReduce op, const void* from, void* to, int64_t outer, int64_t extent,
                    int64_t inner) noexcept;

}  // namespace lathe
