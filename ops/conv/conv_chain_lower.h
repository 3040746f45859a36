#pragma once
// Which convolutions of a graph are computed together in bands of rows (conv_chain.h), and their step.
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ops/lower.h"

namespace lathe {

// A depthwise convolution with the dense one before it, the pointwise one behind it, or both; a MaxPool with the
// convolution before it. Each result between them has no other reader and is too large for the cache near a core.
class ConvChains {
 public:
  ConvChains(const Graph& graph, const Target& target);

  // Computed by the step of a later node.
  bool is_inner(NodeId id) const { return inner_.contains(id); }
  // The nodes of the chain that ends here, in order; empty: none does.
  std::span<const NodeId> ending_at(NodeId id) const;

 private:
  std::unordered_set<NodeId> inner_;
  std::unordered_map<NodeId, std::vector<NodeId>> by_last_;
};

// Adds one step for the nodes of a chain. False: no kernels can be emitted; lower each by itself.
bool lower_conv_chain(std::span<const LowerContext> nodes);

}  // namespace lathe
