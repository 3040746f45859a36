#include "tools/task_list.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/step_chains.h"
#include "ops/task_text.h"
#include "tools/node_task.h"

namespace lathe::tools {
namespace {

// Nothing but what the tasks of a product or convolution do too.
bool is_planned(const Step& step) {
  const std::string_view kernel = step.kernel;
  if (kernel == "sums of blocks") return true;
  return (kernel.starts_with("conv ") && !kernel.starts_with("conv int8 winograd")) ||
         (kernel.starts_with("gemm ") && !kernel.ends_with(" bf16"));
}

class TaskList {
 public:
  TaskList(const GraphPart& part, const RunnerContext& context) : part_(part), context_(context) {
    for (const Step& step : part.head().lowered().steps) steps_[step.node].push_back(&step);
  }

  std::vector<std::string> make() {
    for (const TuningTask& task : context_.plans->recorded()) add(task_text(task));
    const Graph& graph = part_.head().graph();
    const StepChains chains(graph, context_.target);
    for (const NodeId id : graph.order()) {
      if (chains.is_inner(id)) continue;
      const StepChain* chain = chains.ending_at(id);
      if (chain == nullptr) {
        add_node(id);
      } else if (const auto text = node_task_text(graph, chain->nodes, context_.target.accuracy)) {
        add(*text);
      }
    }
    return std::move(lines_);
  }

 private:
  void add(const std::string& line) {
    if (seen_.insert(line).second) lines_.push_back(line);
  }

  void add_node(NodeId id) {
    const auto steps = steps_.find(part_.head().graph().node(id).name);
    if (steps == steps_.end()) return;
    if (std::all_of(steps->second.begin(), steps->second.end(), [](const Step* step) { return is_planned(*step); }))
      return;
    if (const auto text = node_task_text(part_.head().graph(), {&id, 1}, context_.target.accuracy)) add(*text);
  }

  const GraphPart& part_;
  const RunnerContext& context_;
  std::map<std::string, std::vector<const Step*>> steps_;  // by node
  std::vector<std::string> lines_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<std::string> task_lines(const GraphPart& part, const RunnerContext& context) {
  return TaskList(part, context).make();
}

}  // namespace lathe::tools
