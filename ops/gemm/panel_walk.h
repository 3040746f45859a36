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
    const auto part_of = [&](GemmSplit kind, int64_t count) {
      return split == kind ? split_evenly(count, share, shares) : Range{0, count};
    };
    const Range mine = part_of(GemmSplit::columns, products * panels), my_tiles = part_of(GemmSplit::rows, tiles);
    const Range columns = part_of(GemmSplit::same_columns, panels);
    for (int64_t product = mine.begin / panels; product * panels < mine.end; ++product) {
      const int64_t first = std::max<int64_t>(columns.begin, mine.begin - product * panels);
      const int64_t end = std::min<int64_t>(columns.end, mine.end - product * panels);
      const bool is_last = (product + 1) * panels >= mine.end;
      for (int64_t tile = my_tiles.begin; tile < my_tiles.end; tile += tiles_in_block) {
        const Range block{tile, std::min<int64_t>(my_tiles.end, tile + tiles_in_block)};
        for (int64_t panel = first; panel < end; ++panel)
          visit(product, panel, block, is_last && panel + 1 == end && block.end == my_tiles.end);
      }
    }
  }
};

}  // namespace lathe
