#pragma once
#include "tools/model_inputs.h"
#include "tools/model_options.h"

namespace lathe::tools {

// Prints, for each graph pass: how often it fired, how many nodes it took away, how long it took, and how the model
// runs without it: more steps, more bytes to move, more time (measured side by side with the whole pipeline).
void print_pass_table(const ModelOptions& model, const InputOptions& inputs);

}  // namespace lathe::tools
