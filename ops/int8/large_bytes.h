#pragma once
// Bytes that are large together (kMostOfNeighbours, kMostOfSignedNeighbours), so that they are multiplied in halves.
#include <cstdint>

namespace lathe {

// Bytes with zero points from here to there, or to its negative, are mostly small: those behind a rectifier are, and
// those that spread around 0.
constexpr int32_t kNearZero = 32;

constexpr int64_t kLargeTogether = 32;
// Bits of those of kLargeTogether unsigned bytes that are of large neighbours, and of those that are of four which are:
// of each eight bytes 0, 1, 4 and 5, or the others.
struct LargeBits {
  uint32_t neighbours = 0, fours = 0;
};
LargeBits large_bits(const uint8_t* bytes) noexcept;
// Whether there are such neighbours, or with `by_fours` such fours, in 4 * kLargeTogether bytes.
bool has_large(const uint8_t* bytes, bool by_fours) noexcept;

// large[part] = 1 for each part, of `part_bytes` (the last one may be shorter), of a row's `bytes`, an even number,
// that has neighbours which are large together.
void find_large_parts(const uint8_t* row, bool is_signed, int64_t bytes, int64_t part_bytes, uint8_t* large) noexcept;

}  // namespace lathe
