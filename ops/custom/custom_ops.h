#pragma once
// Operators that users bring in shared libraries (include/lathe/custom_op.h).
#include <memory>
#include <string>
#include <vector>

#include "ops/op_def.h"

namespace lathe {

// All operators of Lathe and of these libraries. The registry keeps the libraries loaded.
// Throws Error(io) naming a file that cannot be loaded, Error(invalid_argument) for one that is not made for this Lathe
// or whose operators exist already.
std::shared_ptr<const OpRegistry> registry_with(const std::vector<std::string>& libraries);

}  // namespace lathe
