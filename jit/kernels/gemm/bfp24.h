#pragma once
// Block floating point of 24 bits: how B lies where some tens of rows wait for memory, and 20 bits (bfp20.h) would lose
// digits that count. A block is a whole column: an element is an integer times the column's scale, off by half a unit
// of 24 bits, 2^-24 of the largest element of the column.
//
// A panel of a width of whole vectors:
//   groups of 4 rows, vector by vector of columns:
//     words [3][lanes]   rows 0, 1 and 2 as they are used, integers of 32 bits. Their lowest bytes are, in this order,
//                        the bytes of row 3 from its second lowest on: a unit is 2^8, and what else stands there is
//                        part of the number when the upper bits are chosen.
//   scales  [width]      float32
#include <cstdint>

namespace lathe {

struct Bfp24 {
  static constexpr int kGroupRows = 4;  // k is a multiple of it
  static constexpr int kGroupWords = kGroupRows - 1;
  static constexpr int kByte = 8;  // bits of row 3 in each word
  static constexpr int32_t kLargestCode = (1 << 23) - 1;

  // Words of 32 bits of a column's k rows, and of its scale.
  static constexpr int64_t row_words(int64_t k) { return k / kGroupRows * kGroupWords; }
  static constexpr int64_t words(int64_t k) { return row_words(k) + 1; }
};

}  // namespace lathe
