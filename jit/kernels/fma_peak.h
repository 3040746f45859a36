#pragma once
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

// A loop of independent multiply-adds on registers: the yardstick for "percent of peak". Runs `iterations` >= 1 rounds
// of fma_peak_flop(isa) float32 operations each.
Kernel<void(int64_t iterations)> emit_fma_peak(Isa isa);
double fma_peak_flop(Isa isa);

}  // namespace lathe
