#pragma once
// Which convolutions of a graph are computed together in bands of rows (conv_chain.h), and their step.
#include <span>
#include <vector>

#include "ops/lower.h"
#include "ops/sole_readers.h"

namespace lathe {

// A depthwise convolution with the dense one before it, the pointwise one behind it, or both; a MaxPool with the
// convolution before it. Each result between them has no other reader and is too large for the cache near a core.
// They may have nodes in common.
std::vector<std::vector<NodeId>> conv_chains(const Graph& graph, const SoleReaders& readers, const Target& target);

// A convolution and the MaxPool of 2x2 pixels, side by side, that alone reads it (lower_pooled_conv()).
std::vector<std::vector<NodeId>> pooled_convs(const Graph& graph, const SoleReaders& readers, const Target& target);

// Adds one step for the nodes of a chain. False: no kernels can be emitted; lower each by itself.
bool lower_conv_chain(std::span<const LowerContext> nodes);

}  // namespace lathe
