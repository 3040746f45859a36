#pragma once
// Which part of Lathe first departs from the plain reference.
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lathe/session.h"
#include "tools/compare.h"

namespace lathe::tools {

struct Departure {
  enum class Kind { node, pass } kind = Kind::node;
  std::string name;        // of the node or pass
  std::string operation;   // of a node: "Conv", and the kernel that ran
  std::string difference;  // what differs, and by how much
};

// Runs the graph by references, and as `options` say. Where results differ: does the unoptimized graph differ too? Then
// the first node whose result does; else the first pass, in their order, with which it does. nullopt: nothing differs.
std::optional<Departure> find_departure(const Graph& graph, const std::vector<Tensor>& inputs,
                                        const SessionOptions& options, const Tolerance& tolerance);

}  // namespace lathe::tools
