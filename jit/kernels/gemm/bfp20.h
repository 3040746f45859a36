#pragma once
// Block floating point of 20 bits: how B lies for products of few rows, which wait for memory alone. An element is a
// two's complement code of 20 bits times the scale of its column's block of 64 rows; with the scales 20.5 bits in the
// place of 32. Off by half a unit: 2^-20 of the largest element among the 64.
//
// A panel of a width of whole vectors, block by block, in words of 32 bits:
//   scales  [width]            the value of a unit, divided by 2^12: a code is used as the upper bits of an integer
//   groups of 8 rows, vector by vector of columns:
//     lower [lanes]            the lowest 4 bits of the codes of rows 0, 1, ..., 7, from bit 0 on
//     upper [4][lanes]         the upper 16 bits of the codes of rows 2i (bits 0 to 15) and 2i + 1 (bits 16 to 31)
#include <cstdint>

#include "src/base/divide.h"

namespace lathe {

struct Bfp20 {
  static constexpr int64_t kGroupRows = 8, kBlockRows = 64;
  static constexpr int64_t kGroupWords = 5;  // of a column
  static constexpr int kBits = 20, kLowerBits = 4;
  static constexpr uint32_t kLowerMask = (1u << kLowerBits) - 1;
  static constexpr int32_t kLargestCode = (1 << (kBits - 1)) - 1;
  static constexpr int kCodeAt = 32 - kBits;  // its lowest bit in the integer that it becomes

  // Of a column of k rows. Requires: k is a multiple of kGroupRows.
  static constexpr int64_t words(int64_t k) { return divide_up(k, kBlockRows) + k / kGroupRows * kGroupWords; }
};

}  // namespace lathe
