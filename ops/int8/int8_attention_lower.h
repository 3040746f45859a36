#pragma once
// Which nodes of a graph are attention over bytes (int8_attention.h), and their step.
#include <span>
#include <vector>

#include "ops/lower.h"
#include "ops/sole_readers.h"

namespace lathe {

// lathe::QuantizedMatMul, Softmax that is rounded to bytes, lathe::QuantizedMatMul: each result between them has no
// other reader. They may have nodes in common.
std::vector<std::vector<NodeId>> int8_attentions(const Graph& graph, const SoleReaders& readers);

// Adds one step for three such nodes, and those that bring their operands into form. False: not these types, extents or
// this CPU; lower each by itself.
bool lower_int8_attention(std::span<const LowerContext> nodes);

}  // namespace lathe
