#include "src/runtime/graph_part.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "graph/infer.h"
#include "src/base/check.h"
#include "src/runtime/body_runners.h"
#include "src/runtime/graph_runner.h"

namespace lathe {
namespace {

bool has_open_outputs(const Graph& graph, const Node& node) {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return id != ValueId::none && !graph.value(id).type.is_static(); });
}

// Which values depend on the data-dependent shapes: results of the first open node and all that follows from them.
std::vector<bool> values_behind_cut(const Graph& graph) {
  std::vector<bool> behind(graph.value_count(), false);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool is_behind =
        has_open_outputs(graph, node) || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
          return input != ValueId::none && behind[index_of(input)];
        });
    if (!is_behind) continue;
    for (ValueId output : node.outputs)
      if (output != ValueId::none) behind[index_of(output)] = true;
  }
  return behind;
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

void deliver(const Tensor& result, Tensor& output) {
  if (!output.defined()) {
    output = result;
    return;
  }
  if (output.dtype() != result.dtype() || output.dims() != result.dims())
    throw Error(ErrorCode::invalid_argument,
                "an output buffer is " + std::string(name_of(output.dtype())) + "[" + to_string(output.dims()) +
                    "], the result is " + std::string(name_of(result.dtype())) + "[" + to_string(result.dims()) + "]");
  if (result.bytes() > 0) std::memcpy(output.mutable_raw(), result.raw(), result.bytes());
}

// Part of every run: allocates nothing.
bool has_type(const Tensor& tensor, const TensorType& type) {
  return tensor.dtype() == type.dtype &&
         std::equal(tensor.dims().begin(), tensor.dims().end(), type.dims.begin(), type.dims.end(),
                    [](int64_t extent, const Dim& dim) { return extent == dim.extent; });
}

Tensor uninitialized(const TensorType& type) {
  const size_t bytes = type.storage_bytes();
  void* memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (memory == nullptr)
    throw Error(ErrorCode::limit, "out of memory: an output of " + std::to_string(bytes) + " bytes");
  return Tensor::view(type.dtype, type.extents(), memory,
                      std::shared_ptr<const void>(memory, [](const void* p) { std::free(const_cast<void*>(p)); }));
}

}  // namespace

GraphPart::GraphPart(const Graph& source, std::span<const Tensor> inputs,
                     const std::shared_ptr<RunnerContext>& context) {
  auto bodies = std::make_shared<BodyRunners>(context);
  run_body_ = [bodies](const Graph& body, std::span<const Tensor> body_inputs) {
    return bodies->run(body, body_inputs);
  };

  auto graph = std::make_unique<Graph>(source);
  for (size_t i = 0; i < inputs.size(); ++i)
    graph->value(graph->inputs[i]).type = TensorType::of(inputs[i].dtype(), inputs[i].dims());
  infer_types(*graph, context->limits);
  passes_ =
      run_passes(*graph, bind_passes(), context->pass_context(), context->optimization_level, context->disabled_passes);
  const bool is_open = std::any_of(graph->order().begin(), graph->order().end(),
                                   [&](NodeId id) { return has_open_outputs(*graph, graph->node(id)); });
  if (is_open)
    split(std::move(graph), context);
  else
    specialize(std::move(graph), context);
}

GraphPart::~GraphPart() = default;

void GraphPart::specialize(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context) {
  const auto reports = run_passes(*graph, specialize_passes(), context->pass_context(), context->optimization_level,
                                  context->disabled_passes);
  passes_.insert(passes_.end(), reports.begin(), reports.end());
  const LowerOptions options{context->ops, context->target, *context->packed, *context->plans, run_body_};
  head_ = std::make_unique<Specialization>(std::move(graph), options, context->team);
}

void GraphPart::split(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context) {
  const std::vector<bool> behind = values_behind_cut(*graph);
  std::vector<NodeId> head_order, rest_order;
  for (NodeId id : graph->order()) {
    const auto& outputs = graph->node(id).outputs;
    const bool is_behind = std::any_of(outputs.begin(), outputs.end(), [&](ValueId output) {
      return output != ValueId::none && behind[index_of(output)];
    });
    (is_behind ? rest_order : head_order).push_back(id);
  }
  cut_ = std::make_unique<const Node>(graph->node(rest_order.front()));
  rest_order.erase(rest_order.begin());

  std::vector<ValueId> head_outputs, rest_values, wanted;
  auto source_of = [&](ValueId id) -> Source {
    if (id == ValueId::none) return {};
    const Value& value = graph->value(id);
    if (value.is_constant()) return {Source::From::constant, 0, value.constant};
    const auto input = std::find(graph->inputs.begin(), graph->inputs.end(), id);
    if (input != graph->inputs.end())
      return {Source::From::input, static_cast<size_t>(input - graph->inputs.begin()), {}};
    const auto made = std::find(cut_->outputs.begin(), cut_->outputs.end(), id);
    if (made != cut_->outputs.end()) return {Source::From::cut, static_cast<size_t>(made - cut_->outputs.begin()), {}};
    if (!behind[index_of(id)]) return {Source::From::head, position(head_outputs, id), {}};
    return {Source::From::rest, 0, {}};
  };
  for (ValueId id : cut_->inputs) cut_inputs_.push_back(source_of(id));
  for (ValueId id : graph->outputs) outputs_.push_back(source_of(id));
  for (NodeId node : rest_order)
    for (ValueId id : graph->node(node).inputs) {
      if (id == ValueId::none || graph->value(id).is_constant()) continue;
      const Source source = source_of(id);
      if (source.from == Source::From::rest) continue;
      if (position(rest_values, id) == rest_inputs_.size()) rest_inputs_.push_back(source);
    }
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].from == Source::From::rest) outputs_[i].index = position(wanted, graph->outputs[i]);

  auto rest = subgraph(*graph, std::move(rest_order), rest_values, wanted);
  specialize(subgraph(*graph, std::move(head_order), graph->inputs, head_outputs), context);
  rest_ = std::make_unique<GraphRunner>(std::move(rest), context);
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
  if (cut_ != nullptr) return run_split(inputs, outputs, profile);
  const auto& types = head_->output_types();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined())
      outputs[i] = uninitialized(types[i]);
    else if (!has_type(outputs[i], types[i]))
      throw Error(ErrorCode::invalid_argument,
                  "output " + std::to_string(i) + ": the buffer is " + std::string(name_of(outputs[i].dtype())) + "[" +
                      to_string(outputs[i].dims()) + "], the result is " + to_string(types[i]));
  }
  head_->run(inputs, outputs, profile);
}

void GraphPart::run_split(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  Results results{inputs, {}, {}, {}};
  for (const TensorType& type : head_->output_types()) results.head.push_back(uninitialized(type));
  head_->run(inputs, results.head, profile);

  std::vector<Tensor> operands;
  for (const Source& source : cut_inputs_) operands.push_back(take(source, results));
  const auto begin = std::chrono::steady_clock::now();
  results.cut = run_reference(*cut_, operands, Limits{}, run_body_);
  if (profile != nullptr) {
    StepTime time;
    time.node = cut_->name;
    time.op = std::string(cut_->op->name);
    time.kernel = "reference";
    const auto ns = [](auto t) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
    };
    time.begin_ns = ns(begin);
    time.end_ns = ns(std::chrono::steady_clock::now());
    profile->steps.push_back(std::move(time));
  }

  std::vector<Tensor> rest_inputs;
  for (const Source& source : rest_inputs_) rest_inputs.push_back(take(source, results));
  results.rest.resize(rest_->graph().outputs.size());
  rest_->run(rest_inputs, results.rest, profile);
  for (size_t i = 0; i < outputs.size(); ++i) deliver(take(outputs_[i], results), outputs[i]);
}

}  // namespace lathe
