#pragma once
#include <cstdint>

namespace lathe {

// Of counts and sizes: not negative, and `unit` at least 1.
constexpr int64_t divide_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }
constexpr int64_t round_up(int64_t count, int64_t unit) { return divide_up(count, unit) * unit; }

}  // namespace lathe
