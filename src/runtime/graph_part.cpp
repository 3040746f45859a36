#include "src/runtime/graph_part.h"

#include <algorithm>

#include "graph/infer.h"
#include "lathe/error.h"
#include "src/base/box.h"
#include "src/runtime/body_runners.h"
#include "src/runtime/graph_runner.h"
#include "src/runtime/stage_graph.h"

namespace lathe {
namespace {

bool is_object(const Graph& graph, ValueId id) { return id != ValueId::none && graph.value(id).type.is_object(); }

bool fits_buffer(const Graph& graph, ValueId id) { return id == ValueId::none || graph.value(id).type.fits_buffer(); }

// True: the node has no place among planned buffers and runs by its reference.
bool must_cut(const Graph& graph, const Node& node) {
  return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return !fits_buffer(graph, id); }) ||
         std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return is_object(graph, id); });
}

// True: knowing more shapes would not change that.
bool always_cuts(const Graph& graph, const Node& node) {
  const auto never_fits = [&](ValueId id) {
    return is_object(graph, id) || (id != ValueId::none && graph.value(id).type.dtype == DType::string);
  };
  return std::any_of(node.outputs.begin(), node.outputs.end(), never_fits) ||
         std::any_of(node.inputs.begin(), node.inputs.end(), never_fits);
}

bool needs_split(const Graph& graph) {
  return std::any_of(graph.order().begin(), graph.order().end(),
                     [&](NodeId id) { return must_cut(graph, graph.node(id)); }) ||
         std::any_of(graph.outputs.begin(), graph.outputs.end(), [&](ValueId id) { return !fits_buffer(graph, id); });
}

// That of lathe::Pointwise is its epilogue.
bool has_reference(const Node& node) { return node.op->reference != nullptr || node.epilogue; }

bool any_of_values(const std::vector<ValueId>& ids, const std::vector<bool>& set) {
  return std::any_of(ids.begin(), ids.end(), [&](ValueId id) { return id != ValueId::none && set[index_of(id)]; });
}

void insert_values(const std::vector<ValueId>& ids, std::vector<bool>& set) {
  for (ValueId id : ids)
    if (id != ValueId::none) set[index_of(id)] = true;
}

GraphPieces cut_graph(const Graph& graph, size_t cuts) {
  const bool takes_all = !may_have_rest(graph, cuts);
  GraphPieces pieces;
  std::vector<bool> behind_cut(graph.value_count(), false), in_rest(graph.value_count(), false);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!must_cut(graph, node) && !any_of_values(node.inputs, behind_cut)) {
      pieces.head.push_back(id);
      continue;
    }
    insert_values(node.outputs, behind_cut);
    const bool runs_alone = takes_all || always_cuts(graph, node);
    const bool joins_cut = pieces.cut.empty() || (runs_alone && has_reference(node));
    if (joins_cut && !any_of_values(node.inputs, in_rest)) {
      pieces.cut.push_back(id);
    } else {
      pieces.rest.push_back(id);
      insert_values(node.outputs, in_rest);
    }
  }
  return pieces;
}

// Part of every run: allocates nothing.
bool has_type(const Tensor& tensor, const TensorType& type) {
  return tensor.dtype() == type.dtype &&
         std::equal(tensor.dims().begin(), tensor.dims().end(), type.dims.begin(), type.dims.end(),
                    [](int64_t extent, const Dim& dim) { return extent == dim.extent; });
}

}  // namespace

GraphPart::GraphPart(std::unique_ptr<Graph> graph, std::span<const Tensor> inputs,
                     const std::shared_ptr<RunnerContext>& context, size_t cuts,
                     const std::shared_ptr<BodyRunners>& bodies, Constants constants, PassReplay* replay) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorType& type = graph->value(graph->inputs[i]).type;
    // An object's type is what the graph knows of it: the value itself may change from run to run.
    if (!is_boxed(inputs[i]) || !type.is_object()) type = TensorType::of(inputs[i].dtype(), inputs[i].dims());
  }
  infer_types(*graph, context->limits);
  const auto scripts = replay == nullptr ? std::nullopt : replay->scripts();
  PassReplay::Scripts seen;
  if (scripts)
    replay_passes(*graph, bind_passes(), context->pass_context(), scripts->bind);
  else
    run_all_passes(*graph, bind_passes(), *context, &seen.bind);
  if (needs_split(*graph)) {
    split(std::move(graph), context, cuts, bodies);
    return;
  }
  if (scripts)
    replay_passes(*graph, specialize_passes(), context->pass_context(), scripts->specialize);
  else
    run_all_passes(*graph, specialize_passes(), *context, &seen.specialize);
  if (replay != nullptr && !scripts) replay->tell(std::move(seen));
  specialize(std::move(graph), context, bodies, constants);
}

GraphPart::~GraphPart() = default;

size_t GraphPart::kept_bytes() const {
  // Steps, kernels' tables, the graph. What lies behind a cut keeps graphs of its own.
  constexpr size_t kNodeBytes = 4 << 10, kCutBytes = 4 << 20;
  return head_->graph().order().size() * kNodeBytes + constant_bytes_ + (behind_ != nullptr ? kCutBytes : 0);
}

void GraphPart::run_all_passes(Graph& graph, const std::vector<Pass>& passes, const RunnerContext& context,
                               PassScript* script) {
  const auto reports =
      run_passes(graph, passes, context.pass_context(), context.optimization_level, context.disabled_passes, script);
  passes_.insert(passes_.end(), reports.begin(), reports.end());
}

void GraphPart::specialize(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context,
                           const std::shared_ptr<BodyRunners>& bodies, Constants constants) {
  if (constants == Constants::keep) {
    // There are many of these, and what passes left behind is most of their memory.
    graph = compacted(std::move(*graph));
    constant_bytes_ = context->constants->share(*graph);
  }
  const LowerOptions options{context->ops, context->target, *context->packed, *context->plans, run_by(bodies)};
  head_ = std::make_unique<Specialization>(std::move(graph), options, context->team, context->arenas, constants);
  result_memory_.emplace(*context->results, head_->output_types().size());
}

void GraphPart::split(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context, size_t cuts,
                      const std::shared_ptr<BodyRunners>& bodies) {
  behind_ = std::make_unique<CutGraph>(*graph, cut_graph(*graph, cuts),
                                       CutGraph::Runners{.context = context, .bodies = bodies, .cuts = cuts});
  graph.reset();
  auto head = behind_->take_head();
  run_all_passes(*head, specialize_passes(), *context);
  specialize(std::move(head), context, bodies, Constants::keep);
}

void GraphPart::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  const auto& types = head_->output_types();
  if (behind_ != nullptr) {
    std::vector<Tensor> made;
    for (const TensorType& type : types) made.push_back(result_memory_->make(type));
    head_->run(inputs, made, profile);
    return behind_->run(inputs, std::move(made), outputs, profile);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined())
      outputs[i] = result_memory_->make(types[i]);
    else if (!has_type(outputs[i], types[i]))
      throw Error(ErrorCode::invalid_argument,
                  "output " + std::to_string(i) + ": the buffer is " + std::string(name_of(outputs[i].dtype())) + "[" +
                      to_string(outputs[i].dims()) + "], the result is " + to_string(types[i]));
  }
  head_->run(inputs, outputs, profile);
}

}  // namespace lathe
