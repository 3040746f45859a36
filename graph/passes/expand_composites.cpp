// Composites (FusedMatMul, QLinearAdd, ...) become the nodes that they are made of.
#include "graph/expand.h"
#include "graph/passes/passes.h"

namespace lathe::passes {

bool expand_composites(Graph& graph, const PassContext& context) { return expand_nodes(graph, context.ops); }

}  // namespace lathe::passes
