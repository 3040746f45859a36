#pragma once
// Functions of one byte as a table of their 256 results.
#include <array>
#include <cstdint>

#include "src/base/cpu.h"

namespace lathe {

using ByteTable = std::array<uint8_t, 256>;  // by the operand's bits

// out[i] = table[in[i]] for `count` bytes; the two may be the same.
void look_up(const ByteTable& table, const uint8_t* in, uint8_t* out, int64_t count, Isa isa) noexcept;

}  // namespace lathe
