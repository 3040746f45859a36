#pragma once
// Nodes that one step computes together, a part at a time, so that what lies between them is never whole in memory.
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ops/lower.h"

namespace lathe {

struct StepChain {
  std::vector<NodeId> nodes;  // in order; what all but the last make, others of them read, and nobody else
  // Adds steps for all nodes. False, and nothing is added: not as they are.
  using Lower = bool (*)(std::span<const LowerContext> nodes);
  std::vector<Lower> ways;  // to be tried in turn

  // False: by none of the ways; lower the first by itself.
  bool lower(std::span<const LowerContext> contexts) const;
};

class StepChains {
 public:
  StepChains(const Graph& graph, const Target& target);

  // Computed by the step of a later node.
  bool is_inner(NodeId id) const { return inner_.contains(id); }
  // Null: none ends here.
  const StepChain* ending_at(NodeId id) const;

 private:
  // Unless one of its nodes is in a chain of other nodes already.
  void add(std::vector<NodeId> nodes, StepChain::Lower lower);

  std::unordered_set<NodeId> inner_;
  std::unordered_map<NodeId, StepChain> by_last_;
};

}  // namespace lathe
