#pragma once
// Into which stages a reduction falls; and those of int32 and int64 along one axis, modulo 2^bits, as plain loops that
// the compiler turns into vector code.
#include <cstdint>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

struct ReductionStage {
  int64_t outer = 1, extent = 1, inner = 1;
};
// Neighbouring axes of one kind are merged, then one stage for each group of reduced axes, innermost first.
std::vector<ReductionStage> reduction_stages(const Dims& dims, const std::vector<bool>& reduced);

enum class IntegerReduce : uint8_t { sum, product, maximum, minimum };

bool has_integer_reduction(DType dtype);
// [outer][extent][inner] at `from` to [outer][inner] at `to`. Requires: has_integer_reduction(dtype), extent > 0.
void reduce_integers(DType dtype, IntegerReduce op, const void* from, void* to, int64_t outer, int64_t extent,
                     int64_t inner) noexcept;

}  // namespace lathe
