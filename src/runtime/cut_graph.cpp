#include "src/runtime/cut_graph.h"

#include <algorithm>
#include <iterator>

#include "src/runtime/deliver.h"
#include "src/runtime/graph_runner.h"

namespace lathe {
namespace {

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

}  // namespace

bool may_have_rest(const Graph& graph, size_t cuts) {
  constexpr size_t kMostCuts = 128, kMostCopies = 250'000;
  return cuts < kMostCuts && cuts * graph.order().size() < kMostCopies;
}

CutGraph::CutGraph(const Graph& graph, GraphPieces pieces, const Runners& runners) {
  std::vector<Source> sources(graph.value_count());
  for (size_t i = 0; i < graph.inputs.size(); ++i) sources[index_of(graph.inputs[i])] = {Source::From::input, i, {}};
  const auto made_by = [&](const std::vector<NodeId>& nodes, Source::From from) {
    size_t index = 0;
    for (NodeId id : nodes)
      for (ValueId output : graph.node(id).outputs) {
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
    if (graph.value(id).is_constant()) return {Source::From::constant, 0, graph.value(id).constant};
    Source source = sources[index_of(id)];
    if (source.from == Source::From::head) source.index = position(head_outputs, id);
    if (source.from == Source::From::rest) source.index = position(rest_outputs, id);
    return source;
  };
  for (NodeId id : pieces.cut) {
    cut_.push_back(std::make_unique<CutNode>(graph.node(id), runners.context, run_by(runners.bodies)));
    auto& inputs = cut_inputs_.emplace_back();
    for (ValueId input : graph.node(id).inputs) inputs.push_back(source_of(input));
  }
  for (ValueId id : graph.outputs) outputs_.push_back(source_of(id));
  for (NodeId node : pieces.rest)
    for (ValueId id : graph.node(node).inputs) {
      if (id == ValueId::none || graph.value(id).is_constant()) continue;
      if (sources[index_of(id)].from == Source::From::rest) continue;
      if (position(rest_values, id) == rest_inputs_.size()) rest_inputs_.push_back(source_of(id));
    }

  head_ = subgraph(graph, std::move(pieces.head), graph.inputs, head_outputs);
  if (rest_outputs.empty()) return;
  rest_ = std::make_unique<GraphRunner>(subgraph(graph, std::move(pieces.rest), rest_values, rest_outputs),
                                        runners.context, runners.cuts + 1, runners.growing_rest, runners.bodies);
}

CutGraph::~CutGraph() = default;

Tensor CutGraph::take(const Source& source, const Results& results) {
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

void CutGraph::run(std::span<const Tensor> inputs, std::vector<Tensor> head, std::span<Tensor> outputs,
                   Profile* profile) const {
  Results results{inputs, std::move(head), {}, {}};
  run_cut(results, outputs, profile);
  if (rest_ != nullptr) {
    std::vector<Tensor> rest_inputs;
    for (const Source& source : rest_inputs_) rest_inputs.push_back(take(source, results));
    results.rest.resize(rest_->graph().outputs.size());
    rest_->run(rest_inputs, results.rest, profile);
  }
  for (size_t i = 0; i < outputs.size(); ++i) deliver(take(outputs_[i], results), outputs[i]);
}

void CutGraph::run_cut(Results& results, std::span<const Tensor> outputs, Profile* profile) const {
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
