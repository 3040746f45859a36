#pragma once
// Matrices of bytes in panels of 16-bit pairs; ops/int8/int8_pack.h is what others include.
#include <cstdint>

#include "ops/int8/int8_pack.h"

namespace lathe {

// Columns of a panel.
struct PanelPart {
  int64_t column, columns, width;  // the first, of the matrix; how many; how many are stored, with zeros behind
};

// All rows of a part, less the zero points of their columns, two in each of `pairs` groups of 32 bits, with zeros
// behind the last row.
void pack_pairs(const ByteMatrix& matrix, const PanelPart& part, int64_t pairs, const ByteZeros& zeros,
                int16_t* out) noexcept;

}  // namespace lathe
