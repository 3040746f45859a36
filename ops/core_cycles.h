#pragma once
// What the rules that choose a convolution without measurements ask of a core, by instruction set.
#include <cstdint>

#include "src/base/cpu.h"

namespace lathe {

// Multiply-adds or dot products on whole vectors.
inline double products_per_cycle(Isa isa, const CoreRates& rates) { return has_avx512(isa) ? rates.wide_products : 2; }

inline bool has_two_wide_products(Isa isa, const CoreRates& rates) {
  return has_avx512(isa) && rates.wide_products > 1;
}

// What lies beyond L2 comes slowly beside two multipliers: Xeons.
inline bool has_slow_l3(Isa isa, const CoreRates& rates) {
  constexpr double kSlow = 20;  // bytes in a cycle
  return has_two_wide_products(isa, rates) && rates.l3_bytes < kSlow;
}

// Zen 5: additions pass beside both.
inline bool adds_beside_two(Isa isa, const CoreRates& rates) {
  return rates.adds_beside && has_two_wide_products(isa, rates);
}

// Some lanes of a last vector are columns, and half of them at most.
inline bool is_half_vector(int64_t last_columns, int64_t lanes) {
  return last_columns > 0 && 2 * last_columns <= lanes;
}

// Rows of a product whose sums shall share a register where a row's last vector has so many columns (SharedVector).
// Only two multipliers of whole vectors gain by it: others take half the time for half a vector.
inline int rows_that_share(int64_t last_columns, Isa isa, const CoreRates& rates) {
  if (!has_two_wide_products(isa, rates) || !is_half_vector(last_columns, vector_lanes(isa))) return 1;
  return 4 * last_columns <= vector_lanes(isa) ? 4 : 2;
}

// Half a vector is multiplied where no more lanes are columns: what the other cores gain by.
inline bool halves_last(int64_t last_columns, Isa isa, const CoreRates& rates) {
  return has_avx512(isa) && !has_two_wide_products(isa, rates) && is_half_vector(last_columns, vector_lanes(isa));
}

// Weights that few rows read once are fetched ahead into L2: where it has more lines under way than L1 (Xeons, Zen 5).
inline bool fetches_into_l2(const CoreRates& rates) { return rates.wide_products > 1; }

}  // namespace lathe
