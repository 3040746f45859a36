#pragma once
#include <span>

#include "graph/extent_sums.h"
#include "graph/op_schema.h"

namespace lathe {

// Integers that are the same for all shapes become constants. True: there were some.
bool fold_numbers(Graph& graph, const ExtentSums& sums);

// A list of int64, or one, whose elements are sums of extents of the graph's inputs.
bool can_spell(const Graph& graph, const ExtentSums& sums, ValueId id);
// These slots read the same numbers, made from Shapes of the graph's inputs. Requires: can_spell() of each of them.
void spell_from_inputs(Graph& graph, const OpLookup& ops, const ExtentSums& sums, std::span<const Graph::Use> slots);

}  // namespace lathe
