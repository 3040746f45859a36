#pragma once
// Nodes that name axes of their first input, and how they name them when that input comes in another order of axes.
#include <optional>
#include <utility>
#include <vector>

#include "graph/passes/rewrite.h"
#include "src/base/axis_order.h"

namespace lathe {

struct TurnedNode {
  std::vector<ValueId> inputs;  // but the first, which is the value before the Transpose
  std::vector<std::pair<const char*, Attribute>> attributes;
  std::vector<int64_t> perm;  // of the Transposes that belong behind it
};

// For a node whose input 0 is Transpose(x, perm): the node over x. Adds what it needs for other inputs before `place`.
// nullopt: this operator, or this node, cannot say it; nothing was added.
std::optional<TurnedNode> turned_node(Rewriter& rewriter, const OpLookup& ops, const Node& node, NodeId place,
                                      const std::vector<int64_t>& perm);

}  // namespace lathe
