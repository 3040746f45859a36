#include "ops/reduction_stages.h"

#include <algorithm>
#include <type_traits>

namespace lathe {
namespace {

template <IntegerReduce Op, class T>
[[gnu::always_inline]] inline T joined(T a, T b) {
  using Unsigned = std::make_unsigned_t<T>;
  if constexpr (Op == IntegerReduce::sum) return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  if constexpr (Op == IntegerReduce::product)
    return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  if constexpr (Op == IntegerReduce::maximum) return std::max(a, b);
  return std::min(a, b);
}

template <IntegerReduce Op, class T>
[[gnu::target("avx2")]] void reduce(const T* from, T* to, int64_t outer, int64_t extent, int64_t inner) {
  for (int64_t o = 0; o < outer; ++o, from += extent * inner, to += inner) {
    if (inner == 1) {
      T value = from[0];
      for (int64_t i = 1; i < extent; ++i) value = joined<Op>(value, from[i]);
      *to = value;
      continue;
    }
    std::copy(from, from + inner, to);
    for (int64_t i = 1; i < extent; ++i) {
      const T* row = from + i * inner;
      for (int64_t c = 0; c < inner; ++c) to[c] = joined<Op>(to[c], row[c]);
    }
  }
}

template <class T>
void dispatch(IntegerReduce op, const T* from, T* to, int64_t outer, int64_t extent, int64_t inner) {
  switch (op) {
    case IntegerReduce::sum:
      return reduce<IntegerReduce::sum>(from, to, outer, extent, inner);
    case IntegerReduce::product:
      return reduce<IntegerReduce::product>(from, to, outer, extent, inner);
    case IntegerReduce::maximum:
      return reduce<IntegerReduce::maximum>(from, to, outer, extent, inner);
    case IntegerReduce::minimum:
      return reduce<IntegerReduce::minimum>(from, to, outer, extent, inner);
  }
}

}  // namespace

std::vector<ReductionStage> reduction_stages(const Dims& dims, const std::vector<bool>& reduced) {
  std::vector<int64_t> merged;  // alternating groups
  std::vector<bool> kinds;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    if (!kinds.empty() && kinds.back() == reduced[i]) {
      merged.back() *= dims[i];
    } else {
      merged.push_back(dims[i]);
      kinds.push_back(reduced[i]);
    }
  }
  std::vector<ReductionStage> stages;
  for (size_t i = merged.size(); i-- > 0;) {
    if (!kinds[i]) continue;
    ReductionStage stage{1, merged[i], 1};
    for (size_t k = 0; k < merged.size(); ++k) (k < i ? stage.outer : stage.inner) *= k == i ? 1 : merged[k];
    stages.push_back(stage);
    merged[i] = 1;
  }
  return stages;
}

bool has_integer_reduction(DType dtype) { return dtype == DType::i64 || dtype == DType::i32; }

void reduce_integers(DType dtype, IntegerReduce op, const void* from, void* to, int64_t outer, int64_t extent,
                     int64_t inner) noexcept {
  if (dtype == DType::i64) {
    dispatch(op, static_cast<const int64_t*>(from), static_cast<int64_t*>(to), outer, extent, inner);
  } else {
    dispatch(op, static_cast<const int32_t*>(from), static_cast<int32_t*>(to), outer, extent, inner);
  }
}

}  // namespace lathe
