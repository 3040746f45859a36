#pragma once
#include <string>
#include <vector>

#include "src/runtime/graph_part.h"

namespace lathe::tools {

// What a model's kernels have to do, as bench-kernel takes it: the tasks that plans were asked for, then every node
// that has steps of its own beside them, and every chain of convolutions. Each line once. `part` keeps its constants.
std::vector<std::string> task_lines(const GraphPart& part, const RunnerContext& context);

}  // namespace lathe::tools
