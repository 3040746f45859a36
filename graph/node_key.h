#pragma once
// Nodes and constants as bytes that are equal only where what they compute is: for finding what a graph has twice.
#include <cstddef>
#include <string>

#include "graph/graph.h"

namespace lathe {

constexpr size_t kComparedBytes = 4096;  // of larger constants the key has the address only

// The type of a constant larger than that and some of its bytes, from all over it: those of different weights differ.
std::string sample_of(const Tensor& constant);
bool are_equal(const Tensor& a, const Tensor& b);

// False, with `key` of no use: a tensor of strings.
bool append_tensor_key(std::string& key, const Tensor& tensor);
// The operator, its attributes and epilogue, and the ids of its inputs; empty where equality cannot be told (bodies,
// random numbers).
std::string node_key(const Graph& graph, const Node& node);

}  // namespace lathe
