#pragma once
#include <string>

#include "src/runtime/runner_context.h"
#include "src/runtime/specialization.h"

namespace lathe::tools {

// Prints the machine code of every kernel that the node calls, as binutils' objdump reads it; without objdump, as
// bytes. Throws Error(invalid_argument) when there is no such node or it calls no generated code.
void print_assembly(const Specialization& specialization, const std::string& node, const RunnerContext& context);

}  // namespace lathe::tools
