#pragma once
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

// Infers every value's type in order, by the operators' own functions; folds what shape arithmetic needs on the way
// (a node with known small integer inputs is run by its reference, and Shape of static dims becomes a constant), so
// that Shape -> Gather -> Concat -> Reshape chains resolve. Throws Error(invalid_model) naming the node.
// An unknown extent without a name is given one of its own, "?<value>.<axis>", so that extents that follow from it are
// known to be equal. True: a type changed, or something was folded.
bool infer_types(Graph& graph, const Limits& limits = {});
// The type without names that infer_types made up: they mean nothing in another graph or to a user.
TensorType without_inferred_symbols(TensorType type);

// Types of one node's outputs under these inputs (as infer_types does it).
std::vector<TensorType> infer_node(const Graph& graph, const Node& node);

// Runs the body of an If, Loop or Scan: its inputs, captures last -> its outputs.
using BodyRunner = std::function<std::vector<Tensor>(const Graph& body, std::span<const Tensor> inputs)>;

// Runs one node by its reference and applies its epilogue. `inputs`: all of node.inputs in order (captures and epilogue
// inputs too); undefined tensors stand for ValueId::none. Requires: the schema has a reference. Without `run_body`,
// bodies are run node by node the same way.
std::vector<Tensor> run_reference(const Node& node, std::span<const Tensor> inputs, const Limits& limits,
                                  const BodyRunner& run_body = nullptr);
// Runs a whole graph node by node through references: the oracle of tests.
std::vector<Tensor> run_reference_graph(const Graph& graph, std::span<const Tensor> inputs, const Limits& limits = {});

}  // namespace lathe
