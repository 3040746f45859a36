#pragma once
// Tasks of any operator: "node " and the text of a node (graph/node_text.h), lowered for this machine as in a model.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "lathe/accuracy.h"
#include "tuner/task.h"

namespace lathe::tools {

// "node LayerNormalization@17[...](...) -> ..."; behind "node " stands "accuracy=strict " where it is not normal.
// nullopt: see node_text().
std::optional<std::string> node_task_text(const Graph& graph, std::span<const NodeId> nodes, Accuracy accuracy);
bool is_node_task(std::string_view text);

// A task with no knobs; the products and convolutions within it get their plans from `plans`, which must live until the
// task is made. Throws Error(invalid_argument) for another text, Error(unsupported) for another instruction set or when
// nothing is left to compute.
TuningTask parse_node_task(std::string_view text, int threads, PlanSource& plans);

// What pointwise nodes of a task take as they are compiled, and what products and convolutions of float32 do behind
// their sums: operations of products and multiply-adds, two each, and divisions, those of transcendental functions
// among them. Others take nothing. Throws as parse_node_task().
struct PointwiseWork {
  double flop = 0, divisions = 0;
  bool is_all = true;  // the task has no other nodes
};
PointwiseWork pointwise_work(std::string_view text);

}  // namespace lathe::tools
