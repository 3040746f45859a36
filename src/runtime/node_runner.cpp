#include "src/runtime/node_runner.h"

#include <algorithm>
#include <iterator>

#include "graph/infer.h"
#include "src/runtime/specialization.h"

namespace lathe {
namespace {

// Tasks of the load are not worth a place in a cache.
class FallbackPlans : public PlanSource {
 public:
  Candidate choose(const TuningTask& task) override { return task.space.fallback; }
};

}  // namespace

std::unique_ptr<Graph> graph_of_node(const Node& node, std::span<const Tensor> inputs, std::span<const Tensor> fixed) {
  auto graph = std::make_unique<Graph>();
  Node own = node;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "input" + std::to_string(i);
    own.inputs[i] = ValueId::none;
    if (!inputs[i].defined()) continue;
    if (fixed[i].defined()) {
      own.inputs[i] = graph->add_constant(name, fixed[i]);
      continue;
    }
    own.inputs[i] = graph->add_value(name, TensorType::of(inputs[i].dtype(), inputs[i].dims()));
    graph->inputs.push_back(own.inputs[i]);
  }
  for (size_t i = 0; i < own.outputs.size(); ++i) {
    if (own.outputs[i] == ValueId::none) continue;
    own.outputs[i] = graph->add_value("output" + std::to_string(i), {});
    graph->outputs.push_back(own.outputs[i]);
  }
  graph->add_node(std::move(own));
  return graph;
}

std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, const RunnerContext& context) {
  auto graph = graph_of_node(node, inputs, std::vector<Tensor>(inputs.size()));
  std::vector<Tensor> given;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(given), [](const Tensor& t) { return t.defined(); });
  infer_types(*graph, context.limits);

  FallbackPlans plans;
  PackedWeights packed;
  Target target = context.target;
  target.accuracy = Accuracy::strict;
  const LowerOptions options{context.ops, target, packed, plans, nullptr};
  const Specialization specialization(std::move(graph), options, context.team, context.arenas, Constants::keep);
  std::vector<Tensor> made;
  for (const TensorType& type : specialization.output_types()) made.emplace_back(type.dtype, type.extents());
  specialization.run(given, made, nullptr);
  std::vector<Tensor> results;
  for (size_t i = 0, next = 0; i < node.outputs.size(); ++i)
    results.push_back(node.outputs[i] == ValueId::none ? Tensor() : made[next++]);
  return results;
}

PassContext RunnerContext::pass_context() const {
  const auto run = [this](const Node& node, std::span<const Tensor> inputs) { return run_node(node, inputs, *this); };
  return {ops, limits, vector_lanes(target.isa), fired.get(), run};
}

}  // namespace lathe
