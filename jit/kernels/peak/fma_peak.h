#pragma once
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/arithmetic.h"
#include "src/base/cpu.h"

namespace lathe {

// A loop of independent multiply-adds on registers: the yardstick for "percent of peak". Runs `iterations` >= 1 rounds
// of fma_peak_flop(isa, arithmetic) operations each. What the instruction set has no instruction for is done as kernels
// do it: bfloat16 as float32, bytes as weights of seven bits or, by AVX-512 without VNNI, as 16-bit integers.
Kernel<void(int64_t iterations)> emit_fma_peak(Isa isa, Arithmetic arithmetic = Arithmetic::f32);
double fma_peak_flop(Isa isa, Arithmetic arithmetic = Arithmetic::f32);

// The same with divisions of float32, division_peak_count(isa) in a round: their unit is busy for several cycles.
// `among_products`: each with kProductsBesideDivision multiply-adds beside it, from whose units it may take turns.
inline constexpr int kProductsBesideDivision = 8;
Kernel<void(int64_t iterations)> emit_division_peak(Isa isa, bool among_products = false);
double division_peak_count(Isa isa);

}  // namespace lathe
