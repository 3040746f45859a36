#pragma once
// The cores that rules were fitted to, as core_rates() tells them apart: rules are tested alike on every machine.
#include "src/base/cpu.h"

namespace lathe {

inline constexpr CoreRates kZen3{1, 4, 8, 16}, kZen4{1, 8, 9, 12}, kZen5{2, 8, 10, 40}, kXeon{2, 4.4, 8.8, 12, false};

}  // namespace lathe
