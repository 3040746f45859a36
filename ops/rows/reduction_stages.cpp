#include "ops/rows/reduction_stages.h"

#include <immintrin.h>

#include <algorithm>
#include <limits>
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
    // NaN wins. Without a branch, for vectors.
    const bool keeps = static_cast<int>(Op == PlainReduce::maximum ? a >= b : a <= b) | static_cast<int>(a != a);
    return keeps ? a : b;
  } else {
    if constexpr (Op == PlainReduce::sum)
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    if constexpr (Op == PlainReduce::product)
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    if constexpr (Op == PlainReduce::maximum) return std::max(a, b);
    return std::min(a, b);
  }
}

// Four doubles of partial results with four others; where one is NaN, any of the two.
template <PlainReduce Op>
[[gnu::target("avx2"), gnu::always_inline]] inline __m256d joined_doubles(__m256d a, __m256d b) {
  if constexpr (Op == PlainReduce::sum) return _mm256_add_pd(a, b);
  if constexpr (Op == PlainReduce::product) return _mm256_mul_pd(a, b);
  if constexpr (Op == PlainReduce::maximum) return _mm256_max_pd(a, b);
  return _mm256_min_pd(a, b);
}

// In an order of its own: partial results that vectors hold.
template <PlainReduce Op>
[[gnu::target("avx2")]] double reduce_doubles(const double* row, int64_t extent) {
  constexpr int64_t kLanes = 4, kVectors = 4, kParts = kLanes * kVectors;
  constexpr bool kIsOrder = Op == PlainReduce::maximum || Op == PlainReduce::minimum;
  int64_t i = 1;
  double value = row[0];
  if (extent >= 2 * kParts) {
    __m256d parts[kVectors];
    __m256d is_nan = _mm256_setzero_pd();
    for (int64_t k = 0; k < kVectors; ++k) {
      parts[k] = _mm256_loadu_pd(row + k * kLanes);
      if (kIsOrder) is_nan = _mm256_or_pd(is_nan, _mm256_cmp_pd(parts[k], parts[k], _CMP_UNORD_Q));
    }
    for (i = kParts; i + kParts <= extent; i += kParts) {
      for (int64_t k = 0; k < kVectors; ++k) {
        const __m256d x = _mm256_loadu_pd(row + i + k * kLanes);
        if (kIsOrder) is_nan = _mm256_or_pd(is_nan, _mm256_cmp_pd(x, x, _CMP_UNORD_Q));
        parts[k] = joined_doubles<Op>(parts[k], x);
      }
    }
    if (_mm256_movemask_pd(is_nan) != 0) return std::numeric_limits<double>::quiet_NaN();
    alignas(32) double lanes[kLanes];
    _mm256_store_pd(lanes,
                    joined_doubles<Op>(joined_doubles<Op>(parts[0], parts[1]), joined_doubles<Op>(parts[2], parts[3])));
    value = joined<Op>(joined<Op>(lanes[0], lanes[1]), joined<Op>(lanes[2], lanes[3]));
  }
  for (; i < extent; ++i) value = joined<Op>(value, row[i]);
  return value;
}

// Integers in any order are the same: the compiler makes vectors of them.
template <PlainReduce Op, class T>
[[gnu::target("avx2")]] T reduce_row(const T* row, int64_t extent) {
  if constexpr (std::is_same_v<T, double>) {
    return reduce_doubles<Op>(row, extent);
  } else {
    T value = row[0];
    for (int64_t i = 1; i < extent; ++i) value = joined<Op>(value, row[i]);
    return value;
  }
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
  if (dtype == DType::boolean || is_byte(dtype)) return is_order;
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
