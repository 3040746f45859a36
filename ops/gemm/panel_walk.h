#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/gemm/gemm_plan.h"
#include "src/base/thread_team.h"

namespace lathe {

// All panels of a batch of products against all row tiles, as one share of the work takes them: a block of tiles stays
// in L2 while the panels of its product pass.
struct PanelWalk {
  GemmSplit split;
  int64_t products, panels, tiles, tiles_in_block;

  // visit(product, panel, tiles, is_last): `is_last` of all that this share does.
  template <class Visit>
  void run(int share, int shares, Visit visit) const {
    const bool by_rows = split == GemmSplit::rows;
    const Range mine = by_rows ? Range{0, products * panels} : split_evenly(products * panels, share, shares);
    const Range my_tiles = by_rows ? split_evenly(tiles, share, shares) : Range{0, tiles};
    for (int64_t item = mine.begin; item < mine.end;) {
      const int64_t product = item / panels, first = product * panels;
      const int64_t end = std::min<int64_t>(mine.end, first + panels);
      for (int64_t tile = my_tiles.begin; tile < my_tiles.end; tile += tiles_in_block) {
        const Range block{tile, std::min<int64_t>(my_tiles.end, tile + tiles_in_block)};
        for (int64_t at = item; at < end; ++at)
          visit(product, at - first, block, at + 1 == mine.end && block.end == my_tiles.end);
      }
      item = end;
    }
  }
};

}  // namespace lathe
