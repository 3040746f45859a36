// lathe inspect MODEL: what the model is and what Lathe makes of it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "graph/text.h"
#include "jit/kernel.h"
#include "src/runtime/session_state.h"
#include "tools/disassembly.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/pass_report.h"
#include "tools/plan_report.h"
#include "tools/task_list.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

struct InspectOptions {
  ModelOptions model;
  InputOptions inputs;
  std::string assembly_node;
  bool shows_graph = false;
  std::string show;  // one part only
};

std::string describe(const ValueInfo& info) {
  std::string text = fmt::format("{}: {}", info.name, name_of(info.dtype));
  if (!info.has_rank) return text;
  text += "[";
  for (size_t d = 0; d < info.dims.size(); ++d)
    text += (d > 0 ? "," : "") + (info.dims[d] >= 0         ? std::to_string(info.dims[d])
                                  : info.symbols[d].empty() ? std::string("?")
                                                            : info.symbols[d]);
  return text + "]";
}

void print_passes(const char* when, const std::vector<PassReport>& reports) {
  fmt::print("\npasses {}:\n", when);
  for (const PassReport& report : reports)
    if (report.fired > 0)
      fmt::print("  {:<28} fired {:>3} times, {:>5} -> {:>5} nodes, {:>8.2f} ms\n", report.name, report.fired,
                 report.nodes_before, report.nodes_after, report.milliseconds);
  double total = 0;
  for (const PassReport& report : reports) total += report.milliseconds;
  fmt::print("  all of them: {:.2f} ms\n", total);
}

void print_steps(const Specialization& head) {
  fmt::print("\nsteps:\n");
  double bytes = 0;
  for (const Step& step : head.lowered().steps) {
    fmt::print("  {:<30} {:<30} x{} {}\n", step.op, step.node, step.threads, step.kernel);
    bytes += step.bytes;
  }
  fmt::print("{} steps move {:.2f} MB\n", head.lowered().steps.size(), bytes / 1e6);
}

// Nodes by number of blocked and plain results.
void print_layouts(const Graph& graph) {
  int blocked = 0, plain = 0, reorders = 0;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name == "Reorder") ++reorders;
    for (ValueId output : node.outputs)
      if (output != ValueId::none) (graph.value(output).type.layout == Layout{} ? plain : blocked) += 1;
  }
  fmt::print("\nlayouts: {} values channel-blocked, {} plain, {} reorders\n", blocked, plain, reorders);
}

void print_part(const GraphPart& part, const InspectOptions& options, const RunnerContext& context) {
  print_passes("for these shapes", part.passes());
  if (options.shows_graph) fmt::print("\ngraph:\n{}", to_text(part.head().graph()));
  print_layouts(part.head().graph());
  print_steps(part.head());
  if (const CutGraph* behind = part.behind()) {
    for (const auto& cut : behind->cut())
      fmt::print("  ... cut: {} ({}) runs alone, as its inputs turn out to be\n", cut->node().name,
                 cut->node().op->name);
    if (behind->rest() != nullptr) fmt::print("  ... what follows depends on the shapes of its results\n");
  }
  const KernelCacheStats kernels = kernel_cache_stats();
  fmt::print("\nmemory: {:.2f} MB for intermediate results, {:.2f} MB of packed weights, {} kernels of {:.2f} MB\n",
             static_cast<double>(part.head().memory().arena_bytes) / 1e6,
             static_cast<double>(context.packed->bytes()) / 1e6, kernels.kernels,
             static_cast<double>(kernels.bytes) / 1e6);
}

void print_model(const Session& session) {
  const Session::State& state = *session.state();
  fmt::print("model {}: IR {}, producer '{}'", state.model.source, state.model.ir_version, state.model.producer);
  for (const auto& [domain, version] : state.model.opsets)
    fmt::print(", {} {}", domain.empty() ? "ai.onnx" : domain, version);
  fmt::print("\n\ninputs:\n");
  for (const ValueInfo& info : session.inputs()) fmt::print("  {}\n", describe(info));
  fmt::print("outputs:\n");
  for (const ValueInfo& info : session.outputs()) fmt::print("  {}\n", describe(info));
  fmt::print("\nnodes after loading: {}\n", state.runner->graph().order().size());
  print_passes("at load", state.runner->load_report());
}

void print_tasks(const GraphPart& part, const RunnerContext& context) {
  for (const std::string& line : task_lines(part, context)) fmt::print("{}\n", line);
}

void inspect(const InspectOptions& options) {
  if (options.show == "passes") return print_pass_table(options.model, options.inputs);
  const Session session = Session::load(options.model.model, options.model.session);
  const Session::State& state = *session.state();
  state.runner->keep_constants();
  const bool shows_tasks = options.show == "tasks";
  if (options.assembly_node.empty() && !shows_tasks) print_model(session);
  const std::vector<Tensor> inputs = make_inputs(session, options.inputs);
  state.check_inputs(inputs);
  const auto part = state.runner->part_for(inputs);
  if (shows_tasks) return print_tasks(*part, *state.context);
  if (!options.assembly_node.empty()) return print_assembly(part->head(), options.assembly_node, *state.context);
  print_part(*part, options, *state.context);
  fmt::print("plans: {}\n", describe_plans(session, options.model.session));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "show a model's inputs, passes, layouts, kernels and memory");
  options->model.add_to(*verb);
  options->inputs.add_to(*verb);
  verb->add_option("--show", options->show,
                   "passes: what each graph pass does and what the model costs without it; "
                   "tasks: what its kernels do, as bench-kernel takes it")
      ->check(CLI::IsMember({"passes", "tasks"}));
  verb->add_flag("--graph", options->shows_graph, "print the optimized graph");
  verb->add_option("--asm", options->assembly_node, "print the machine code of this node's kernels");
  verb->callback([options] { inspect(*options); });
}

}  // namespace lathe::tools
