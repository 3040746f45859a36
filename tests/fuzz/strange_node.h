#pragma once
// Single nodes of any operator with operands and attributes at random, most of which make no sense: each either runs or
// is refused by one clear error.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace lathe::testing {

struct StrangeNode {
  Graph graph;                 // that node, and nothing else
  std::vector<Tensor> inputs;  // of the graph
};
// The same for the same seed.
StrangeNode strange_node(uint32_t seed);
std::string describe(const StrangeNode& strange);

// Runs it at level 0 and optimized, on either instruction set, with one thread or two. What is wrong: another failure
// than an Error of the model or its inputs, or results of other types or shapes; nullopt: nothing.
std::optional<std::string> fault_of(const StrangeNode& strange, uint32_t seed);

}  // namespace lathe::testing
