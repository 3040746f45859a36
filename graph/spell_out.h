#pragma once
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

// The graph without what only Lathe knows: epilogues and operators of the domain "lathe" become nodes of ai.onnx at
// `opset`. Requires: inferred types, and plain layouts. Throws Error(unsupported) naming a node that has no spelling.
Graph spelled_out(const Graph& graph, const OpLookup& ops, int opset);

}  // namespace lathe
