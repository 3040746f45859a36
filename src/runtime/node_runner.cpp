#include "src/runtime/node_runner.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "graph/infer.h"
#include "src/runtime/specialization.h"

namespace lathe {
namespace {

// Parameters are few numbers.
constexpr int64_t kMostParameters = 64;

// Operators whose reference moves nothing.
bool is_view(const Node& node) {
  constexpr std::string_view kViews[] = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"};
  return std::find(std::begin(kViews), std::end(kViews), node.op->name) != std::end(kViews);
}

bool is_text(const Tensor& tensor) { return tensor.defined() && tensor.dtype() == DType::string; }

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

bool has_code(const Node& node, const OpRegistry& ops) {
  return node.captures == 0 && !node.op->takes_objects && !is_view(node) && ops.lowering_of(*node.op) != nullptr;
}

// Input 0 is data, unless there is none, and so is what was fused behind the node.
bool is_parameter(const Node& node, size_t i, const Tensor& tensor) {
  const size_t own = node.inputs.size() - (node.epilogue ? static_cast<size_t>(node.epilogue->inputs) : 0);
  return (i > 0 || node.op->name == "ConstantOfShape") && i < own && tensor.rank() <= 1 &&
         tensor.size() <= kMostParameters;
}

std::vector<Tensor> run_node(const Node& node, std::span<const Tensor> inputs, const RunnerContext& context) {
  if (!has_code(node, context.ops) || std::any_of(inputs.begin(), inputs.end(), is_text))
    return run_reference(node, inputs, context.limits);
  std::vector<Tensor> given, fixed(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    if (is_parameter(node, i, inputs[i])) {
      fixed[i] = inputs[i];
    } else {
      given.push_back(inputs[i]);
    }
  }
  auto graph = graph_of_node(node, inputs, fixed);
  infer_types(*graph, context.limits);
  for (const ValueId id : graph->outputs) {
    const TensorType& type = graph->value(id).type;
    if (!type.is_static() || !type.fits_buffer()) return run_reference(node, inputs, context.limits);
  }

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
