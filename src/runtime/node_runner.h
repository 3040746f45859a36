#pragma once
#include <span>
#include <vector>

#include "src/runtime/runner_context.h"

namespace lathe {

// The results of one node by generated code, for products of constants that are too large for a plain loop; at the
// strict level, for they stay. Requires: no bodies, as many inputs as the node has (undefined: absent). Throws Error.
std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, const RunnerContext& context);

}  // namespace lathe
