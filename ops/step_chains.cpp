#include "ops/step_chains.h"

#include <algorithm>

#include "ops/conv/conv_chain_lower.h"
#include "ops/conv/conv_lower.h"
#include "ops/int8/int8_attention_lower.h"
#include "ops/resize/repeated_pixels.h"

namespace lathe {

StepChains::StepChains(const Graph& graph, const Target& target) {
  const SoleReaders readers(graph);
  for (std::vector<NodeId>& pair : pooled_convs(graph, readers, target)) add(std::move(pair), lower_pooled_conv);
  for (std::vector<NodeId>& chain : conv_chains(graph, readers, target)) add(std::move(chain), lower_conv_chain);
  for (std::vector<NodeId>& chain : int8_attentions(graph, readers)) add(std::move(chain), lower_int8_attention);
  for (std::vector<NodeId>& chain : repeated_pixels(graph, readers)) add(std::move(chain), lower_with_repeats);
}

bool StepChain::lower(std::span<const LowerContext> contexts) const {
  return std::any_of(ways.begin(), ways.end(), [&](Lower way) { return way(contexts); });
}

void StepChains::add(std::vector<NodeId> nodes, StepChain::Lower lower) {
  const auto known = by_last_.find(nodes.back());
  if (known != by_last_.end() && known->second.nodes == nodes) return known->second.ways.push_back(lower);
  const auto is_taken = [&](NodeId id) { return is_inner(id) || ending_at(id) != nullptr; };
  if (std::any_of(nodes.begin(), nodes.end(), is_taken)) return;
  inner_.insert(nodes.begin(), nodes.end() - 1);
  const NodeId last = nodes.back();
  by_last_.emplace(last, StepChain{std::move(nodes), {lower}});
}

const StepChain* StepChains::ending_at(NodeId id) const {
  const auto found = by_last_.find(id);
  return found == by_last_.end() ? nullptr : &found->second;
}

}  // namespace lathe
