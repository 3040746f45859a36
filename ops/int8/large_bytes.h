#pragma once
// Bytes that are large together (kMostOfNeighbours, kMostOfSignedNeighbours), so that they are multiplied in halves.
#include <cstddef>
#include <cstdint>
#include <span>

#include "jit/kernels/common/int8_dot.h"

namespace lathe {

// Bytes with zero points from here to there, or to its negative, are mostly small: those behind a rectifier are, and
// those that spread around 0.
constexpr int32_t kNearZero = 32;

constexpr int64_t kLargeTogether = 32;
// Bits of those of kLargeTogether bytes that are of large neighbours, and of those that are of four which are: of each
// eight bytes 0, 1, 4 and 5, or the others.
struct LargeBits {
  uint32_t neighbours = 0, fours = 0;
};
// Of unsigned bytes. `most`: what they add up to without being large, most_together().
LargeBits large_bits(const uint8_t* bytes, int most) noexcept;
// Whether there are such neighbours, or with `by_fours` such fours, in 4 * kLargeTogether bytes.
bool has_large(const uint8_t* bytes, bool by_fours, int most) noexcept;
// Of unsigned bytes beside these weights.
int most_together(std::span<const int8_t> weights) noexcept;

// The least of `count` bytes ^ flip; 255 of none.
uint8_t least_byte(const uint8_t* bytes, int64_t count, uint8_t flip) noexcept;

// Of each part, of `part_bytes` (the last one may be shorter), of a row's `bytes`, an even number: large[part] becomes
// what is large in it, if that is more than what is there.
void find_large_parts(const uint8_t* row, int64_t bytes, int64_t part_bytes, int most, LargeBytes* large) noexcept;
// The same of signed bytes, neighbours alone.
void find_large_parts(const int8_t* row, int64_t bytes, int64_t part_bytes, LargeBytes* large) noexcept;

// Where so many are large that they are told apart for nothing: branches that go now here, now there cost more than
// what the few that go here spare.
inline bool are_mixed(size_t large, size_t all) { return large * 4 > all; }
// Then none is less than LargeBytes::fours.
void prefer_one_way(std::span<LargeBytes> large) noexcept;

}  // namespace lathe
