#pragma once
// Polynomials for tables of pieces of a function.
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace lathe {

// The polynomial, lowest power first, that has f's values at Chebyshev's points of [-half_width, half_width]; by
// Newton's divided differences.
template <size_t kTerms, class Function>
std::array<double, kTerms> interpolate(Function f, double half_width) {
  std::array<double, kTerms> at, value;
  for (size_t i = 0; i < kTerms; ++i) {
    at[i] = half_width * std::cos(std::numbers::pi * (2 * static_cast<double>(i) + 1) / (2 * kTerms));
    value[i] = f(at[i]);
  }
  for (size_t order = 1; order < kTerms; ++order) {
    for (size_t i = kTerms - 1; i >= order; --i) value[i] = (value[i] - value[i - 1]) / (at[i] - at[i - order]);
  }
  std::array<double, kTerms> power = {value[kTerms - 1]};
  for (size_t i = kTerms - 1; i-- > 0;) {
    for (size_t k = kTerms - 1; k > 0; --k) power[k] = power[k - 1] - at[i] * power[k];
    power[0] = value[i] - at[i] * power[0];
  }
  return power;
}

}  // namespace lathe
