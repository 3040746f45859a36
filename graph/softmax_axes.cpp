#include "graph/softmax_axes.h"

#include "graph/op_schema.h"

namespace lathe {

SoftmaxAxes softmax_axes(const Node& node, int64_t rank) {
  constexpr int kSinceOneAxis = 13;
  const bool flattens = node.op->since < kSinceOneAxis;
  const int64_t named = node.attributes.get_int("axis", flattens ? 1 : -1), first = named < 0 ? named + rank : named;
  return {first, flattens ? rank : first + 1, rank};
}

}  // namespace lathe
