#include "ops/pointwise/double_math.h"

#include <immintrin.h>

#include <algorithm>
#include <limits>

namespace lathe {
namespace {

// Adding it rounds a double of less than 2^51 to an integer, which then stands in the low bits.
constexpr double kRounding = 0x1.8p52;
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d all(double value) { return _mm256_set1_pd(value); }

// 2^n as the bits of n + kRounding + 1023, moved into the exponent.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d power_of_two(__m256d n) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(_mm256_add_pd(n, all(kRounding + 1023))), 52));
}

// e^x = 2^n e^r with |r| <= ln(2) / 2, e^r by its series: the first term left out is below 2^-57.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d exponential(__m256d x) {
  constexpr double kMost = 710, kLeast = -746;  // beyond: infinity, and zero
  x = _mm256_max_pd(all(kLeast), _mm256_min_pd(all(kMost), x));
  const __m256d n = _mm256_sub_pd(_mm256_fmadd_pd(x, all(1.44269504088896338700), all(kRounding)), all(kRounding));
  __m256d r = _mm256_fnmadd_pd(n, all(kLn2High), x);
  r = _mm256_fnmadd_pd(n, all(kLn2Low), r);
  constexpr double kSeries[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1,           1};
  __m256d sum = all(kSeries[0]);
  for (size_t i = 1; i < std::size(kSeries); ++i) sum = _mm256_fmadd_pd(sum, r, all(kSeries[i]));
  // In two steps, for powers below the least normal number and beyond the largest.
  const __m256d half = _mm256_sub_pd(_mm256_fmadd_pd(n, all(0.5), all(kRounding)), all(kRounding));
  return _mm256_mul_pd(_mm256_mul_pd(sum, power_of_two(half)), power_of_two(_mm256_sub_pd(n, half)));
}

// log(x) = e ln(2) + log(1 + f), 1 + f between the roots of 1/2 and 2, by the series of fdlibm's e_log.c.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d logarithm(__m256d x) {
  constexpr double kLeastNormal = std::numeric_limits<double>::min(),
                   kInfinity = std::numeric_limits<double>::infinity();
  const __m256d is_tiny = _mm256_cmp_pd(x, all(kLeastNormal), _CMP_LT_OQ);
  const __m256d scaled = _mm256_blendv_pd(x, _mm256_mul_pd(x, all(0x1p54)), is_tiny);
  const __m256i bits = _mm256_castpd_si256(scaled);
  // From the root of 1/2 up to that of 2 the exponent is 1023.
  const __m256i moved = _mm256_add_epi64(bits, _mm256_set1_epi64x(0x3ff0000000000000 - 0x3fe6a09e667f3bcd));
  const __m256i power = _mm256_srli_epi64(moved, 52);
  const __m256i mantissa =
      _mm256_sub_epi64(bits, _mm256_slli_epi64(_mm256_sub_epi64(power, _mm256_set1_epi64x(1023)), 52));
  __m256d e =
      _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(power, _mm256_castpd_si256(all(0x1p52)))), all(0x1p52 + 1023));
  e = _mm256_sub_pd(e, _mm256_and_pd(is_tiny, all(54)));
  const __m256d f = _mm256_sub_pd(_mm256_castsi256_pd(mantissa), all(1));
  const __m256d s = _mm256_div_pd(f, _mm256_add_pd(f, all(2))), z = _mm256_mul_pd(s, s);
  constexpr double kSeries[] = {1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                                2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                                6.666666666666735130e-01};
  __m256d sum = all(kSeries[0]);
  for (size_t i = 1; i < std::size(kSeries); ++i) sum = _mm256_fmadd_pd(sum, z, all(kSeries[i]));
  sum = _mm256_mul_pd(sum, z);
  const __m256d square = _mm256_mul_pd(_mm256_mul_pd(f, f), all(0.5));
  const __m256d low = _mm256_fmadd_pd(s, _mm256_add_pd(square, sum), _mm256_mul_pd(e, all(kLn2Low)));
  __m256d result = _mm256_fmadd_pd(e, all(kLn2High), _mm256_sub_pd(f, _mm256_sub_pd(square, low)));
  const __m256d is_zero = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ);
  const __m256d is_negative = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_LT_OQ);
  const __m256d is_same = _mm256_cmp_pd(x, all(kInfinity), _CMP_NLT_UQ);  // infinity, and NaN
  result = _mm256_blendv_pd(result, x, is_same);
  result = _mm256_blendv_pd(result, all(-kInfinity), is_zero);
  return _mm256_blendv_pd(result, all(std::numeric_limits<double>::quiet_NaN()), is_negative);
}

// Small arguments by Cephes' rational function, which keeps their digits; else 1 - 2 / (e^2x + 1).
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d hyperbolic_tangent(__m256d x) {
  const __m256d sign = all(-0.0), size = _mm256_andnot_pd(sign, x), z = _mm256_mul_pd(x, x);
  __m256d over = _mm256_fmadd_pd(all(-9.64399179425052238628E-1), z, all(-9.92877231001918586564E1));
  over = _mm256_fmadd_pd(over, z, all(-1.61468768441708447952E3));
  __m256d under = _mm256_add_pd(z, all(1.12811678491632931402E2));
  under = _mm256_fmadd_pd(under, z, all(2.23548839060100448583E3));
  under = _mm256_fmadd_pd(under, z, all(4.84406305325125486048E3));
  const __m256d near = _mm256_fmadd_pd(_mm256_mul_pd(x, z), _mm256_div_pd(over, under), x);
  const __m256d above = _mm256_add_pd(exponential(_mm256_add_pd(size, size)), all(1));
  const __m256d far = _mm256_or_pd(_mm256_sub_pd(all(1), _mm256_div_pd(all(2), above)), _mm256_and_pd(sign, x));
  return _mm256_blendv_pd(far, near, _mm256_cmp_pd(size, all(0.625), _CMP_LT_OQ));
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d logistic(__m256d x) {
  return _mm256_div_pd(all(1), _mm256_add_pd(all(1), exponential(_mm256_xor_pd(x, all(-0.0)))));
}

struct Exponential {
  [[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d operator()(__m256d x) const { return exponential(x); }
};
struct Logarithm {
  [[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d operator()(__m256d x) const { return logarithm(x); }
};
struct HyperbolicTangent {
  [[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d operator()(__m256d x) const {
    return hyperbolic_tangent(x);
  }
};
struct Logistic {
  [[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d operator()(__m256d x) const { return logistic(x); }
};

// The last elements as a vector of their own.
template <class F>
[[gnu::target("avx2,fma")]] void map_row(const RowOperands& row) {
  const auto* x = static_cast<const double*>(row.in[0]);
  auto* out = static_cast<double*>(row.out);
  int64_t i = 0;
  for (; i + 4 <= row.length; i += 4) _mm256_storeu_pd(out + i, F{}(_mm256_loadu_pd(x + i)));
  if (i == row.length) return;
  alignas(32) double rest[4] = {};
  std::copy(x + i, x + row.length, rest);
  _mm256_store_pd(rest, F{}(_mm256_load_pd(rest)));
  std::copy_n(rest, row.length - i, out + i);
}

}  // namespace

void exp_row(const RowOperands& row) { map_row<Exponential>(row); }
void log_row(const RowOperands& row) { map_row<Logarithm>(row); }
void tanh_row(const RowOperands& row) { map_row<HyperbolicTangent>(row); }
void sigmoid_row(const RowOperands& row) { map_row<Logistic>(row); }

}  // namespace lathe
