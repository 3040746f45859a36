#pragma once
// An Expression as attributes of a node: pointwise work inside a node, where Node::epilogue has none to offer.
#include <optional>
#include <string>

#include "graph/attributes.h"
#include "src/base/expression.h"

namespace lathe {

// Stores float32 -> float32 expressions under `name` (nodes) and `name`_constants.
void set_expression(Attributes& attributes, const std::string& name, const Expression& expression);
// nullopt: there is none. Throws Error(invalid_model) when the attributes make no expression.
std::optional<Expression> get_expression(const Attributes& attributes, const std::string& name);

}  // namespace lathe
