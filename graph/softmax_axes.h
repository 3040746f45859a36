#pragma once
// The axes that a Softmax, LogSoftmax or Hardmax normalizes together: up to version 12 all from `axis` (default 1) on,
// from version 13 on that axis alone (default -1).
#include <cstdint>

#include "graph/graph.h"

namespace lathe {

struct SoftmaxAxes {
  int64_t first = 0, end = 0;  // of `rank`; where the node names an axis that is not there, neither is `first`
  int64_t rank = 0;

  bool are_innermost() const { return end == rank; }  // rows whose elements are neighbours
  bool is_last_alone() const { return first == rank - 1 && end == rank; }
  bool have(int64_t axis) const { return axis >= first && axis < end; }
};

SoftmaxAxes softmax_axes(const Node& node, int64_t rank);

}  // namespace lathe
