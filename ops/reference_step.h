#pragma once
#include "graph/graph.h"
#include "ops/lower.h"

namespace lathe {

// The fallback for a node without generated code: runs its plain reference on plain copies of blocked inputs and copies
// the results into the planned buffers. Allocates at run time; a profile shows it as "reference".
// `node` must outlive the step.
Step reference_step(const Graph& graph, const Node& node, const LoweredGraph& lowered, const BodyRunner& run_body);

}  // namespace lathe
