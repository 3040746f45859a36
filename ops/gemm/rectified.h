#pragma once
#include "graph/graph.h"

namespace lathe {

// Does the value come from a rectifier (Relu, a square of it, a gate by it, fused or not), perhaps by nodes that only
// move or choose elements? Many of its elements are zeros then, as a rule.
bool is_rectified(const Graph& graph, ValueId value);

}  // namespace lathe
