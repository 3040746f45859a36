#pragma once
#include <memory>
#include <span>
#include <vector>

#include "src/runtime/runner_context.h"

namespace lathe {

// A graph of this node alone, types not yet inferred: its inputs are those of `inputs` that are defined, but for those
// whose elements are given in `fixed`; its outputs those that the node has. Requires: as many of both as the node has.
std::unique_ptr<Graph> graph_of_node(const Node& node, std::span<const Tensor> inputs, std::span<const Tensor> fixed);

// Whether the node may have generated code that is worth making: what only gives memory another shape has not.
bool has_code(const Node& node, const OpRegistry& ops);
// Whether code is made for these very elements: shapes, positions, scales and single values beside the data.
bool is_parameter(const Node& node, size_t i, const Tensor& tensor);

// The results of one node of constants that are too many for a plain loop, by generated code where the node has it,
// else by its reference; at the strict level, for they stay. Requires: no bodies, as many inputs as the node has
// (undefined: absent). Throws Error.
std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, const RunnerContext& context);

}  // namespace lathe
