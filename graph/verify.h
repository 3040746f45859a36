#pragma once
#include "graph/graph.h"

namespace lathe {

// Every invariant that later code relies on: ids in range, one producer each, no use before definition, arity and
// attribute kinds as the schema says, bodies closed, names unique. Throws Error(invalid_model) naming the culprit.
void verify(const Graph& graph);

}  // namespace lathe
