#pragma once
#include <string>
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

enum class BodyTypes { kept, forgotten };  // of the body's values, when they may be claims that do not hold each time

// Copies a body's values and nodes into the graph, with `arguments` for its inputs (captures last). `prefix` begins all
// names. Returns the outer value of each value of the body.
std::vector<ValueId> inline_body(Rewriter& rewriter, const Graph& body, const std::vector<ValueId>& arguments,
                                 const std::string& prefix, NodeId place, BodyTypes types = BodyTypes::kept);

}  // namespace lathe
