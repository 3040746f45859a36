#pragma once
// By value of a graph: who reads it, where that is one node alone.
#include <vector>

#include "graph/graph.h"

namespace lathe {

class SoleReaders {
 public:
  explicit SoleReaders(const Graph& graph);

  // The node that reads it, in one slot or several; none: there are others, or it is a result of the graph.
  NodeId of(ValueId value) const { return readers_[index_of(value)]; }

 private:
  std::vector<NodeId> readers_;
};

// The node has it as its first input and as no other.
bool reads_first_only(const Node& node, ValueId value);

}  // namespace lathe
