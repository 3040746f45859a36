#pragma once
// Which nodes of a graph notice that some extents of its inputs change from run to run, as the tokens in a decoder's
// cache do. Two samples of the inputs' shapes tell:
//   open    a node that reads or makes a value whose shape differs between the samples, or that needs numbers which
//   follow
//           from such a shape
//   fixed   every other node
// The graph falls into stages, open and fixed ones in turn, each of which only needs what earlier ones made.
//
// Two samples prove nothing about a third shape. What is taken for fixed is therefore an assumption that whoever runs
// the stages has to check: Stages::types of all values that pass from an open stage to others. Given these, the values
// of fixed stages have the shapes that inference finds, for they depend on nothing else.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "src/runtime/runner_context.h"

namespace lathe {

struct Stage {
  bool is_open = false;
  // In order. Shape arithmetic is part of every stage that wants its results, for there it becomes constant.
  std::vector<NodeId> nodes;
  size_t work = 0;                       // nodes without it
  std::vector<ValueId> inputs, outputs;  // without constants
};

struct Stages {
  // Whose nodes these are: the given one, with what follows from the fixed extents of its inputs.
  std::shared_ptr<const Graph> graph;
  std::vector<Stage> stages;
  std::vector<TensorType> types;  // by value: known extents are those that both samples have
  size_t nodes = 0;               // without shape arithmetic
};

// nullopt: a shape that depends on data, values that are no tensors, or so few fixed nodes that it does not pay.
// Requires: shapes that fit the graph, whose inputs have the types of `dtypes`. Throws Error where the graph
// contradicts one of the samples.
std::optional<Stages> stages_of(const Graph& graph, const RunnerContext& context, std::span<const DType> dtypes,
                                std::span<const Dims> first, std::span<const Dims> second);

}  // namespace lathe
