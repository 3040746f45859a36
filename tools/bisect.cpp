#include "tools/bisect.h"

#include <algorithm>
#include <map>

#include "graph/infer.h"
#include "graph/pipeline.h"
#include "src/base/thread_team.h"
#include "src/base/topology.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/graph_runner.h"

namespace lathe::tools {
namespace {

std::shared_ptr<RunnerContext> context_of(const SessionOptions& options) {
  const int threads = options.threads > 0 ? options.threads : usable_threads();
  return std::make_shared<RunnerContext>(RunnerContext{.ops = OpRegistry::builtin(),
                                                       .limits = {},
                                                       .target = {usable_isa(), threads},
                                                       .team = std::make_shared<ThreadTeam>(threads),
                                                       .packed = std::make_shared<PackedWeights>(),
                                                       .plans = default_plans(options),
                                                       .optimization_level = options.optimization_level,
                                                       .disabled_passes = options.disabled_passes});
}

struct Outcome {
  std::vector<Tensor> results;
  std::map<std::string, std::string> kernels;  // by node
};

Outcome run(const Graph& graph, const std::vector<Tensor>& inputs, const SessionOptions& options) {
  GraphRunner runner(std::make_unique<Graph>(graph), context_of(options));
  Outcome outcome;
  outcome.results.resize(graph.outputs.size());
  Profile profile;
  runner.run(inputs, outcome.results, &profile);
  for (const StepTime& step : profile.steps) outcome.kernels[step.node] = step.kernel;
  return outcome;
}

std::string first_difference(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                             const Tolerance& tolerance) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::string text = describe_difference(got[i], want[i], tolerance); !text.empty()) return text;
  }
  return "";
}

// Every tensor that a node makes is an output.
Graph with_all_outputs(const Graph& graph) {
  Graph all = graph;
  all.outputs.clear();
  for (const NodeId id : all.order()) {
    for (const ValueId output : all.node(id).outputs) {
      if (output != ValueId::none) all.outputs.push_back(output);
    }
  }
  return all;
}

// At level 0, each node against the reference of the same node over the same inputs' references.
std::optional<Departure> first_node(const Graph& graph, const std::vector<Tensor>& inputs, SessionOptions options,
                                    const Tolerance& tolerance) {
  const Graph all = with_all_outputs(graph);
  options.optimization_level = 0;
  const std::vector<Tensor> want = run_reference_graph(all, inputs);
  const Outcome outcome = run(all, inputs, options);
  for (size_t i = 0; i < all.outputs.size(); ++i) {
    const std::string text = describe_difference(outcome.results[i], want[i], tolerance);
    if (text.empty()) continue;
    const Node& node = all.node(all.value(all.outputs[i]).producer);
    const auto kernel = outcome.kernels.find(node.name);
    const std::string by = kernel == outcome.kernels.end() ? "no step of its own" : kernel->second;
    return Departure{Departure::Kind::node, node.name, std::string(node.op->name) + ", " + by, text};
  }
  return std::nullopt;
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const auto* list : {&load_passes(), &bind_passes(), &specialize_passes()}) {
    for (const Pass& pass : *list) {
      if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.emplace_back(pass.name);
    }
  }
  return names;
}

std::optional<Departure> first_pass(const Graph& graph, const std::vector<Tensor>& inputs,
                                    const SessionOptions& options, const std::vector<Tensor>& want,
                                    const Tolerance& tolerance) {
  const std::vector<std::string> names = pass_names();
  for (size_t count = 1; count <= names.size(); ++count) {
    SessionOptions some = options;
    some.disabled_passes.insert(some.disabled_passes.end(), names.begin() + static_cast<std::ptrdiff_t>(count),
                                names.end());
    const std::string text = first_difference(run(graph, inputs, some).results, want, tolerance);
    if (!text.empty()) return Departure{Departure::Kind::pass, names[count - 1], "", text};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Departure> find_departure(const Graph& graph, const std::vector<Tensor>& inputs,
                                        const SessionOptions& options, const Tolerance& tolerance) {
  const std::vector<Tensor> want = run_reference_graph(graph, inputs);
  if (first_difference(run(graph, inputs, options).results, want, tolerance).empty()) return std::nullopt;
  SessionOptions plain = options;
  plain.optimization_level = 0;
  if (!first_difference(run(graph, inputs, plain).results, want, tolerance).empty()) {
    if (auto node = first_node(graph, inputs, options, tolerance)) return node;
  }
  return first_pass(graph, inputs, options, want, tolerance);
}

}  // namespace lathe::tools
