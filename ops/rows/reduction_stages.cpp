#include "ops/rows/reduction_stages.h"

#include <algorithm>
#include <type_traits>

namespace lathe {
namespace {

template <class T>
using Wrapping = std::make_unsigned_t<std::conditional_t<(sizeof(T) < sizeof(int)), int, T>>;

template <PlainReduce Op, class T>
[[gnu::always_inline]] inline T joined(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (Op == PlainReduce::sum) return a + b;
    if constexpr (Op == PlainReduce::product) return a * b;
    const bool keeps = Op == PlainReduce::maximum ? a >= b : a <= b;
    return keeps || a != a ? a : b;  // NaN wins
  } else {
    if constexpr (Op == PlainReduce::sum)
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    if constexpr (Op == PlainReduce::product)
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    if constexpr (Op == PlainReduce::maximum) return std::max(a, b);
    return std::min(a, b);
  }
}

// Of one row in an order of its own for floating point: partial results that vectors hold.
template <PlainReduce Op, class T>
[[gnu::target("avx2")]] T reduce_row(const T* row, int64_t extent) {
  constexpr int64_t kParts = 64 / static_cast<int64_t>(sizeof(T));
  int64_t i = 1;
  T value = row[0];
  if (extent >= 2 * kParts) {
    T parts[kParts];
    std::copy_n(row, kParts, parts);
    for (i = kParts; i + kParts <= extent; i += kParts) {
      for (int64_t k = 0; k < kParts; ++k) parts[k] = joined<Op>(parts[k], row[i + k]);
    }
    value = parts[0];
    for (int64_t k = 1; k < kParts; ++k) value = joined<Op>(value, parts[k]);
  }
  for (; i < extent; ++i) value = joined<Op>(value, row[i]);
  return value;
}

template <PlainReduce Op, class T>
[[gnu::target("avx2")]] void reduce(const T* from, T* to, int64_t outer, int64_t extent, int64_t inner) {
  for (int64_t o = 0; o < outer; ++o, from += extent * inner, to += inner) {
    if (inner == 1) {
      *to = reduce_row<Op>(from, extent);
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
void dispatch(PlainReduce op, const T* from, T* to, int64_t outer, int64_t extent, int64_t inner) {
  switch (op) {
    case PlainReduce::sum:
      return reduce<PlainReduce::sum>(from, to, outer, extent, inner);
    case PlainReduce::product:
      return reduce<PlainReduce::product>(from, to, outer, extent, inner);
    case PlainReduce::maximum:
      return reduce<PlainReduce::maximum>(from, to, outer, extent, inner);
    case PlainReduce::minimum:
      return reduce<PlainReduce::minimum>(from, to, outer, extent, inner);
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

bool has_plain_reduction(DType dtype, PlainReduce op) {
  const bool is_order = op == PlainReduce::maximum || op == PlainReduce::minimum;
  if (dtype == DType::boolean || dtype == DType::u8 || dtype == DType::i8) return is_order;
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::f64;
}

void reduce_plainly(DType dtype, PlainReduce op, const void* from, void* to, int64_t outer, int64_t extent,
                    int64_t inner) noexcept {
  const auto as = [&]<class T>(T) {
    dispatch(op, static_cast<const T*>(from), static_cast<T*>(to), outer, extent, inner);
  };
  if (dtype == DType::i64) return as(int64_t());
  if (dtype == DType::i32) return as(int32_t());
  if (dtype == DType::f64) return as(double());
  if (dtype == DType::i8) return as(int8_t());
  as(uint8_t());  // and bool, which is 0 or 1
}

}  // namespace lathe
