#pragma once
#include <string>

#include "graph/graph.h"

namespace lathe {

// One line a node: "%y: float32[1,64,56,56] = Conv[strides=[1,1]](%x, %w) then max(x0, 0)". For tests and `lathe inspect`.
std::string to_text(const Graph& graph);

}  // namespace lathe
