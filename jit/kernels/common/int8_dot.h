#pragma once
// Dot products of groups of bytes in 32-bit lanes: which there are, and on which instruction sets.
#include <cstdint>
#include <string>

#include "src/base/cpu.h"

namespace lathe {

// How a 32-bit lane of A meets one of B. All of them are exact: no intermediate sum saturates.
enum class Int8Dot : uint8_t {
  u8s8,  // four bytes each, A unsigned and B signed (VNNI)
  s8u8,  // four bytes each, A signed and B unsigned (VNNI)
  u8s7,  // four bytes each, A unsigned and B from -64 to 64: two products fit 16 bits (AVX2 without VNNI)
  s8s8,  // four bytes each, A signed and B from -127 to 127: the same, by A's size and B by its sign
  // Four bytes each, A unsigned and B signed, or the other way round: two products fit 16 bits as long as neighbours in
  // A are not large together (kMostOfNeighbours), as nearly all are where its bytes are mostly small. The caller says
  // where they may be; there A's bytes are halved, and both halves multiplied (AVX2 without VNNI).
  u8s8_halved,
  s8u8_halved,
  pairs,  // two 16-bit integers each (any instruction set)
  // The same by half the products, Winograd's inner product: with two neighbouring lanes a, a' of A and b, b' of B,
  // (a + b') . (a' + b) is a . b + a' . b' and a . a' + b . b', which the caller takes off again. Sums of elements of A
  // and B fit 16 bits, lanes come in twos. For CPUs that multiply at fewer ports than they add at, and have no
  // instruction that does both: AVX2 without VNNI only.
  crossed,
};
std::string to_string(Int8Dot dot);
// Values of k in one lane.
inline bool is_wide(Int8Dot dot) { return dot == Int8Dot::pairs || dot == Int8Dot::crossed; }  // 16 bits
inline int group_of(Int8Dot dot) { return is_wide(dot) ? 2 : 4; }
// Lanes that are multiplied together.
inline int lanes_of(Int8Dot dot) { return dot == Int8Dot::crossed ? 2 : 1; }
// Lanes of k values, filled up to those that are multiplied together.
inline int64_t groups_of(Int8Dot dot, int64_t k) {
  const int64_t together = int64_t{group_of(dot)} * lanes_of(dot);
  return (k + together - 1) / together * lanes_of(dot);
}
inline bool is_halved(Int8Dot dot) { return dot == Int8Dot::u8s8_halved || dot == Int8Dot::s8u8_halved; }
inline bool multiplies_in_16_bits(Int8Dot dot) {
  return dot == Int8Dot::u8s7 || dot == Int8Dot::s8s8 || is_halved(dot);
}
inline bool has_vnni(Isa isa) { return isa == Isa::avx2_vnni || isa >= Isa::avx512_vnni; }
inline bool has_wide_vnni(Isa isa) { return has_vnni(isa) && has_avx512(isa); }
// What AVX2 alone takes pays nowhere else.
inline bool has_dot(Isa isa, Int8Dot dot) {
  if (dot == Int8Dot::crossed || multiplies_in_16_bits(dot)) return !has_avx512(isa) && !has_vnni(isa);
  return dot == Int8Dot::pairs || has_vnni(isa);
}
inline bool can_cross(Isa isa) { return has_dot(isa, Int8Dot::crossed); }
inline bool dot_needs_temp(Isa isa, Int8Dot dot) {
  return multiplies_in_16_bits(dot) || (dot == Int8Dot::pairs && !has_vnni(isa));
}
// The largest element of B in size that u8s7 and s8s8 take.
constexpr int kMostOfSevenBits = 64, kMostBesideSigns = 127;
// What two bytes of A next to each other, the first and second or third and fourth of a group, add up to without being
// large: unsigned ones, times -128 these are -32,768; and signed ones of one sign, in size, times 255.
constexpr int kMostOfNeighbours = 256, kMostOfSignedNeighbours = 128;
constexpr int kMostBesideSevenBits = 511;  // unsigned ones, times B from -64 to 64
// What is large in a part of A whose groups come in twos. Unsigned neighbours of one group and those at the same place
// of the next, four bytes that together are no more than that, have sums of products that fit 16 bits, too: these are
// added before they are widened, which spares one of four multiplications.
enum class LargeBytes : uint8_t { none, fours, neighbours };
inline bool has_fours(Int8Dot dot) { return dot == Int8Dot::u8s8_halved; }
// The sets that differ in code for bytes.
inline Isa int8_isa(Isa isa) { return has_wide_vnni(isa) ? Isa::avx512_vnni : isa; }

}  // namespace lathe
