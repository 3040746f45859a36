#pragma once
#include <vector>

#include "ops/lower.h"

namespace lathe {

// Lets the constants of a graph go while it is lowered, so that weights and what is packed from them are not held side
// by side: those folded or merged at load, above all, which unlike a mapped file's take memory of their own.
class ConstantRelease {
 public:
  ConstantRelease(Graph& graph, const PackedWeights& packed);

  // A constant stays when a node to come, a step or anybody outside this graph reads it, or when it was not packed.
  // One that goes is undefined from now on.
  void after_lowering(NodeId node, LoweredGraph& lowered);

 private:
  bool may_go(ValueId id, const LoweredGraph& lowered) const;

  Graph& graph_;
  const PackedWeights& packed_;
  std::vector<int> readers_;  // by value: nodes to come, and graph outputs
};

}  // namespace lathe
