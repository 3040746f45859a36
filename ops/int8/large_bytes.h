#pragma once
// Bytes that are large together (kMostOfNeighbours, kMostOfSignedNeighbours), so that they are multiplied in halves.
#include <cstdint>

namespace lathe {

// Bytes with zero points from here to there, or to its negative, are mostly small: those behind a rectifier are, and
// those that spread around 0.
constexpr int32_t kNearZero = 32;

constexpr int64_t kLargeTogether = 32;
// Bits of those of kLargeTogether bytes that are of large neighbours, unsigned ones.
uint32_t large_neighbours(const uint8_t* bytes) noexcept;

// large[part] = 1 for each part, of `part_bytes` (the last one may be shorter), of a row's `bytes`, an even number,
// that has neighbours which are large together.
void find_large_parts(const uint8_t* row, bool is_signed, int64_t bytes, int64_t part_bytes, uint8_t* large) noexcept;

}  // namespace lathe
