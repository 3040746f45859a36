#pragma once
// What the rules that choose a convolution without measurements ask of a core, by instruction set.
#include "src/base/cpu.h"

namespace lathe {

// Multiply-adds or dot products on whole vectors.
inline double products_per_cycle(Isa isa, const CoreRates& rates) { return has_avx512(isa) ? rates.wide_products : 2; }

inline bool has_two_wide_products(Isa isa, const CoreRates& rates) {
  return has_avx512(isa) && rates.wide_products > 1;
}

}  // namespace lathe
