#pragma once
#include "src/base/expression.h"
#include "src/base/text_reader.h"

namespace lathe {

// What to_string(expression) writes, up to a character that cannot go on: evaluates as the original does. Nodes without
// a use are gone. Throws Error(invalid_argument).
Expression read_expression(TextReader& text);

}  // namespace lathe
