#pragma once
// One node of a graph, or a few that are computed together, as one line from which the same kernels can be made again
// anywhere: `lathe inspect --show tasks` prints it, `lathe bench-kernel` runs it.
//
//   Conv@17[kernel_shape=[1, 1]](float32[1,64,56,56]{c16}, const float32[64,64,1,1]) -> float32[1,64,56,56]{c16} then
//       max(x0 + x1, 0) with (float32[1,64,56,56]{c16})
//
// An operator with its opset version (Lathe's own and others behind their domain and a dot), attributes, operands,
// results, and the pointwise work behind it. An operand is the type of an input; `const` and a type, with the elements
// in braces where they are few, {least..largest} where they are many integers or all equal; `#2` for the third value
// of the line; or `_` where it is absent. Further nodes follow behind " ; ".
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

// nullopt: a line cannot hold it (bodies, strings, open extents, large attributes). Requires: values that go from one
// of the nodes to another are read by no other node.
std::optional<std::string> node_text(const Graph& graph, std::span<const NodeId> nodes);

// The graph of such a line: what the nodes do not make themselves are inputs and constants, what none of them reads are
// outputs. Elements that the line does not tell are made up. `channel_block`: how many channels blocked values have in
// a block. Throws Error(invalid_argument) for another text, Error(unsupported) for blocks of another size.
Graph read_nodes(std::string_view line, const OpLookup& ops, int channel_block);

}  // namespace lathe
