#pragma once
#include <algorithm>
#include <cstdint>

#include "src/base/divide.h"

namespace lathe {

// Rows cut into tiles of nearly equal height, so that none is a small rest: tall ones first, then those of one row
// less.
struct RowTiles {
  int64_t count = 0, tall = 0;
  int height = 0;  // of the tall ones

  RowTiles() = default;
  // Requires: 1 <= tiles <= rows.
  RowTiles(int64_t rows, int64_t tiles) : count(tiles), height(static_cast<int>(divide_up(rows, tiles))) {
    tall = rows - tiles * (height - 1);
  }

  int heights() const { return tall == count ? 1 : 2; }  // that differ
  bool is_shorter(int64_t tile) const { return tile >= tall; }
  int64_t row_of(int64_t tile) const { return tile * height - std::max<int64_t>(0, tile - tall); }
  // Tiles [tile, end_of_height(tile, end)) are of one height.
  int64_t end_of_height(int64_t tile, int64_t end) const { return is_shorter(tile) ? end : std::min(end, tall); }
};

}  // namespace lathe
