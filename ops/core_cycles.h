#pragma once
// What the rules that choose a convolution without measurements ask of a core, by instruction set.
#include "src/base/cpu.h"

namespace lathe {

// Multiply-adds or dot products on whole vectors.
inline double products_per_cycle(Isa isa, const CoreRates& rates) { return has_avx512(isa) ? rates.wide_products : 2; }

inline bool has_two_wide_products(Isa isa, const CoreRates& rates) {
  return has_avx512(isa) && rates.wide_products > 1;
}

// Of the cycles that Winograd's transforms take beside one multiplier of full width: two run them both, and stores do
// not take their turns.
inline double transform_part(Isa isa, const CoreRates& rates) {
  constexpr double kOfTwo = 0.65;
  return has_two_wide_products(isa, rates) ? kOfTwo : 1;
}

}  // namespace lathe
