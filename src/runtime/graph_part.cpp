#include "src/runtime/graph_part.h"

#include <algorithm>

#include "graph/infer.h"
#include "lathe/error.h"
#include "src/base/box.h"
#include "src/runtime/body_runners.h"
#include "src/runtime/deliver.h"
#include "src/runtime/graph_runner.h"

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

// A rest holds copies of all nodes behind it and runs within the run of the part before it.
bool may_have_rest(const Graph& graph, size_t cuts) {
  constexpr size_t kMostCuts = 128, kMostCopies = 250'000;
  return cuts < kMostCuts && cuts * graph.order().size() < kMostCopies;
}

// The nodes of a graph that is cut, each list in order.
struct Pieces {
  std::vector<NodeId> head, cut, rest;
};

Pieces cut_graph(const Graph& graph, size_t cuts) {
  const bool takes_all = !may_have_rest(graph, cuts);
  Pieces pieces;
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

// A copy of `graph` with only these nodes, inputs and outputs.
std::unique_ptr<Graph> subgraph(const Graph& graph, std::vector<NodeId> order, std::vector<ValueId> inputs,
                                std::vector<ValueId> outputs) {
  auto part = std::make_unique<Graph>(graph);
  for (size_t v = 0; v < part->value_count(); ++v) part->value(static_cast<ValueId>(v)).producer = NodeId::none;
  for (NodeId id : order)
    for (ValueId output : part->node(id).outputs)
      if (output != ValueId::none) part->value(output).producer = id;
  part->set_order(std::move(order));
  part->inputs = std::move(inputs);
  part->outputs = std::move(outputs);
  part->drop_unused_constants();
  return part;
}

size_t position(std::vector<ValueId>& list, ValueId id) {
  auto at = std::find(list.begin(), list.end(), id);
  if (at == list.end()) at = list.insert(list.end(), id);
  return static_cast<size_t>(at - list.begin());
}

// Part of every run: allocates nothing.
bool has_type(const Tensor& tensor, const TensorType& type) {
  return tensor.dtype() == type.dtype &&
         std::equal(tensor.dims().begin(), tensor.dims().end(), type.dims.begin(), type.dims.end(),
                    [](int64_t extent, const Dim& dim) { return extent == dim.extent; });
}

}  // namespace

GraphPart::GraphPart(std::unique_ptr<Graph> graph, std::span<const Tensor> inputs,
                     const std::shared_ptr<RunnerContext>& context, size_t cuts, Constants constants,
                     PassReplay* replay) {
  auto bodies = std::make_shared<BodyRunners>(context);
  run_body_ = [bodies](const Graph& body, std::span<const Tensor> body_inputs) {
    return bodies->run(body, body_inputs);
  };

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
    split(std::move(graph), context, cuts);
    return;
  }
  if (scripts)
    replay_passes(*graph, specialize_passes(), context->pass_context(), scripts->specialize);
  else
    run_all_passes(*graph, specialize_passes(), *context, &seen.specialize);
  if (replay != nullptr && !scripts) replay->tell(std::move(seen));
  specialize(std::move(graph), context, constants);
}

GraphPart::~GraphPart() = default;

void GraphPart::run_all_passes(Graph& graph, const std::vector<Pass>& passes, const RunnerContext& context,
                               PassScript* script) {
  const auto reports =
      run_passes(graph, passes, context.pass_context(), context.optimization_level, context.disabled_passes, script);
  passes_.insert(passes_.end(), reports.begin(), reports.end());
}

void GraphPart::specialize(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context,
                           Constants constants) {
  const LowerOptions options{context->ops, context->target, *context->packed, *context->plans, run_body_};
  head_ = std::make_unique<Specialization>(std::move(graph), options, context->team, context->arenas, constants);
  result_memory_.emplace(*context->results, head_->output_types().size());
}

void GraphPart::split(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context, size_t cuts) {
  is_split_ = true;
  Pieces pieces = cut_graph(*graph, cuts);
  std::vector<Source> sources(graph->value_count());
  for (size_t i = 0; i < graph->inputs.size(); ++i) sources[index_of(graph->inputs[i])] = {Source::From::input, i, {}};
  const auto made_by = [&](const std::vector<NodeId>& nodes, Source::From from) {
    size_t index = 0;
    for (NodeId id : nodes)
      for (ValueId output : graph->node(id).outputs) {
        if (output != ValueId::none) sources[index_of(output)] = {from, index, {}};
        ++index;
      }
  };
  made_by(pieces.head, Source::From::head);
  made_by(pieces.cut, Source::From::cut);
  made_by(pieces.rest, Source::From::rest);

  std::vector<ValueId> head_outputs, rest_values, rest_outputs;
  const auto source_of = [&](ValueId id) -> Source {
    if (id == ValueId::none) return {};
    if (graph->value(id).is_constant()) return {Source::From::constant, 0, graph->value(id).constant};
    Source source = sources[index_of(id)];
    if (source.from == Source::From::head) source.index = position(head_outputs, id);
    if (source.from == Source::From::rest) source.index = position(rest_outputs, id);
    return source;
  };
  for (NodeId id : pieces.cut) {
    cut_.push_back(std::make_unique<CutNode>(graph->node(id), context, run_body_));
    auto& inputs = cut_inputs_.emplace_back();
    for (ValueId input : graph->node(id).inputs) inputs.push_back(source_of(input));
  }
  for (ValueId id : graph->outputs) outputs_.push_back(source_of(id));
  for (NodeId node : pieces.rest)
    for (ValueId id : graph->node(node).inputs) {
      if (id == ValueId::none || graph->value(id).is_constant()) continue;
      if (sources[index_of(id)].from == Source::From::rest) continue;
      if (position(rest_values, id) == rest_inputs_.size()) rest_inputs_.push_back(source_of(id));
    }

  std::unique_ptr<Graph> rest;
  if (!rest_outputs.empty()) rest = subgraph(*graph, std::move(pieces.rest), rest_values, rest_outputs);
  auto head = subgraph(*graph, std::move(pieces.head), graph->inputs, head_outputs);
  run_all_passes(*head, specialize_passes(), *context);
  specialize(std::move(head), context, Constants::keep);
  if (rest) rest_ = std::make_unique<GraphRunner>(std::move(rest), context, cuts + 1);
}

Tensor GraphPart::take(const Source& source, const Results& results) {
  switch (source.from) {
    case Source::From::absent:
      return {};
    case Source::From::constant:
      return source.constant;
    case Source::From::input:
      return results.inputs[source.index];
    case Source::From::head:
      return results.head[source.index];
    case Source::From::cut:
      return results.cut[source.index];
    case Source::From::rest:
      return results.rest[source.index];
  }
  return {};
}

void GraphPart::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  if (is_split_) return run_split(inputs, outputs, profile);
  const auto& types = head_->output_types();
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

void GraphPart::run_split(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  Results results{inputs, {}, {}, {}};
  for (const TensorType& type : head_->output_types()) results.head.push_back(result_memory_->make(type));
  head_->run(inputs, results.head, profile);

  run_cut(results, outputs, profile);
  if (rest_ != nullptr) {
    std::vector<Tensor> rest_inputs;
    for (const Source& source : rest_inputs_) rest_inputs.push_back(take(source, results));
    results.rest.resize(rest_->graph().outputs.size());
    rest_->run(rest_inputs, results.rest, profile);
  }
  for (size_t i = 0; i < outputs.size(); ++i) deliver(take(outputs_[i], results), outputs[i]);
}

void GraphPart::run_cut(Results& results, std::span<const Tensor> outputs, Profile* profile) const {
  for (size_t i = 0; i < cut_.size(); ++i) {
    std::vector<Tensor> operands;
    for (const Source& source : cut_inputs_[i]) operands.push_back(take(source, results));
    const size_t first = results.cut.size();
    std::vector<Tensor> buffers(cut_[i]->node().outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) {
      const bool is_own = outputs_[k].from == Source::From::cut && outputs_[k].index >= first &&
                          outputs_[k].index - first < buffers.size();
      if (is_own) buffers[outputs_[k].index - first] = outputs[k];
    }
    std::vector<Tensor> made = cut_[i]->run(operands, buffers, profile);
    results.cut.insert(results.cut.end(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  }
}

}  // namespace lathe
