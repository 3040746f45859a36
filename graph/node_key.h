#pragma once
// Nodes and constants as bytes that are equal only where what they compute is: for finding what a graph has twice.
#include <cstddef>
#include <string>

#include "graph/graph.h"

namespace lathe {

constexpr size_t kComparedBytes = 4096;  // larger constants are equal only when they are the same memory

// False, with `key` of no use: a tensor of strings.
bool append_tensor_key(std::string& key, const Tensor& tensor);
// The operator, its attributes and epilogue, and the ids of its inputs; empty where equality cannot be told (bodies,
// random numbers).
std::string node_key(const Graph& graph, const Node& node);

}  // namespace lathe
