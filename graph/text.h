#pragma once
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace lathe {

// One line a node: "%y: float32[1,64,56,56] = Conv[strides=[1,1]](%x, %w) then max(x0, 0)". For tests and `lathe
// inspect`.
std::string to_text(const Graph& graph);

// A name as messages show it: in single quotes, control characters escaped, long ones cut. A name is data from outside.
std::string in_quotes(std::string_view name);
// "node 'conv3' (Conv)": how messages name a node.
std::string describe(const Node& node);

}  // namespace lathe
