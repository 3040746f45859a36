#pragma once
// What crossed products (Int8Dot::crossed) have in their sums besides, to be taken off by their initial terms.
#include <cstdint>

#include "ops/int8/int8_pack.h"

namespace lathe {

// Products of m x k by k x n, of pairs, that are faster when crossed: enough rows share a tile's weights, and columns
// the rows' terms.
bool pays_crossed(Isa isa, int64_t m, int64_t n, int64_t k);

// out[row] = - the sum over its twos of groups a, a' of a . a'. `groups` of 32 bits: even.
void crossed_row_terms(const void* a, int64_t rows, int64_t groups, int64_t stride_bytes, int32_t* out) noexcept;

// out[padded(columns)]: the sums of each packed column's b . b'.
void crossed_column_sums(const void* packed, const Int8PanelFormat& format, int64_t rows, int64_t columns,
                         int32_t* out) noexcept;

}  // namespace lathe
