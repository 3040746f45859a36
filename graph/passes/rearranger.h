#pragma once
// Transposes, Reshapes and Slices that a pass adds, all where one node stands. What is known of their results follows
// from their operands. `result`: the value that the node makes, of any type given before; none: a new one, named as x
// is.
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

class Rearranger {
 public:
  // `place` as in Rewriter::add().
  Rearranger(Rewriter& rewriter, const OpLookup& ops, NodeId place) : rewriter_(rewriter), ops_(ops), place_(place) {}

  // `dims` as a Reshape takes them: 0: that of x, which has one there; -1: what is left.
  ValueId reshaped(ValueId x, const std::vector<int64_t>& dims, ValueId result = ValueId::none);
  // Requires: x has as many axes as `perm`.
  ValueId transposed(ValueId x, const std::vector<int64_t>& perm, ValueId result = ValueId::none);
  // Places `begin` to `end` of each of these axes. Requires: they are there.
  struct Piece {
    int64_t axis, begin, end;
  };
  ValueId sliced(ValueId x, const std::vector<Piece>& pieces);

 private:
  Rewriter& rewriter_;
  const OpLookup& ops_;
  const NodeId place_;
};

}  // namespace lathe
