#pragma once
#include <optional>

#include "graph/graph.h"

namespace lathe {

// Places `begin` to `end` of one axis.
struct SlicePiece {
  NodeId slice = NodeId::none;
  int64_t axis = 0, begin = 0, end = 0;
};
// A Slice of one axis by steps of 1, at places that are known.
std::optional<SlicePiece> slice_piece(const Graph& graph, NodeId id);

}  // namespace lathe
