#pragma once
// Matrix products by fewer products of blocks than the plain ones have, as data. A is cut into rows x inner blocks, B
// into inner x columns, C into rows x columns. Each product multiplies a sum of A's blocks by a sum of B's; what a
// block of C holds so far may be added to it, and it is then added to, or subtracted from, some blocks of C.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace lathe {

struct BilinearScheme {
  struct Product {  // 1, -1 or 0 for each block, row by row
    std::array<int8_t, 6> a;
    std::array<int8_t, 9> b;
    std::array<int8_t, 6> c;
    int8_t takes = -1;  // the block of C that is added first; if it is among those of `c`, it becomes the sum
  };
  std::string_view name;
  int rows, inner, columns;
  // In an order in which no block of C is subtracted from first, or taken behind the last product that it is part of.
  std::span<const Product> products;
  // Sums of B's blocks are packed; else they are made, of two blocks at most, while the kernel loads them.
  bool packs_sums;

  int a_blocks() const { return rows * inner; }
  int b_blocks() const { return inner * columns; }
  int c_blocks() const { return rows * columns; }
  // Elements of all sums of A's blocks for each row of A.
  int64_t sums_per_row(int64_t k) const { return static_cast<int64_t>(products.size()) * k / a_blocks(); }
  // What it takes is the sum of other products alone: C comes from a single pass over k.
  bool takes_sums() const;
};

// V. Strassen, 1969: 7 products for 8.
extern const BilinearScheme kStrassen222;
extern const BilinearScheme kPackedStrassen222;  // its sums of B's blocks are packed
// Of the rank that J. Hopcroft and L. Kerr found in 1971: 15 products for 18.
extern const BilinearScheme kHopcroftKerr233;

}  // namespace lathe
