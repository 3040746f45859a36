#pragma once
#include "graph/graph.h"

namespace lathe {

// Does the value come from a rectifier (Relu, or what is fused and ends as one), perhaps by nodes that only move or
// choose elements? Many of its elements are zeros then, as a rule.
bool is_rectified(const Graph& graph, ValueId value);

}  // namespace lathe
