#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/runtime/open_stages.h"

namespace lathe {

// One stage as a graph of its own, with nothing in it that the stage does not use. `types`: Stages::types.
std::unique_ptr<Graph> graph_of(const Stage& stage, const Graph& graph, const std::vector<TensorType>& types);
// The same graph without what its passes left behind.
std::unique_ptr<Graph> compacted(Graph graph);
// Equal for graphs that compute the same from inputs of the same types; empty where that cannot be told.
std::string key_of(const Graph& graph);

}  // namespace lathe
