#pragma once
#include <memory>
#include <span>
#include <vector>

#include "src/runtime/runner_context.h"

namespace lathe {

// A graph of this node alone, types not yet inferred: its inputs are those of `inputs` that are defined, but for those
// whose elements are given in `fixed`; its outputs those that the node has. Requires: as many of both as the node has.
std::unique_ptr<Graph> graph_of_node(const Node& node, std::span<const Tensor> inputs, std::span<const Tensor> fixed);

// The results of one node by generated code, for products of constants that are too large for a plain loop; at the
// strict level, for they stay. Requires: no bodies, as many inputs as the node has (undefined: absent). Throws Error.
std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, const RunnerContext& context);

}  // namespace lathe
