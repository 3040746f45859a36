#pragma once
#include <cstdint>

#include "graph/type.h"

namespace lathe {

// How a value's elements lie: rows of `lanes`, all of them elements but in every `period`-th run of `rows` rows, in
// which only the first `valid` of each row are: lanes past the channels. Plain values: one run.
struct ValueRows {
  int64_t lanes = 1, rows = 0, period = 1, valid = 1;
  int64_t runs = 1;

  static ValueRows of(const TensorType& type);           // Requires: type.is_static().
  int64_t count() const { return runs * rows * lanes; }  // with those lanes
  bool is_partial(int64_t run) const { return valid < lanes && run % period == period - 1; }
};

}  // namespace lathe
