#include "src/runtime/stage_graph.h"

#include <unordered_map>

#include "graph/node_key.h"

namespace lathe {
namespace {

// Copies nodes, and what they read, to a graph of their own: ids count up in the order of use, so that equal stages of
// different layers become equal graphs.
class StageCopy {
 public:
  // `keeps_symbols`: that the model has given.
  StageCopy(const Stage& stage, const Graph& graph, const std::vector<TensorType>& types, bool keeps_symbols)
      : from_(graph), types_(types), keeps_symbols_(keeps_symbols), to_(std::make_unique<Graph>()) {
    to_->name = graph.name;
    for (const NodeId id : stage.nodes) copy(graph.node(id));
    for (const ValueId id : stage.inputs) to_->inputs.push_back(copied(id));
    for (const ValueId id : stage.outputs) to_->outputs.push_back(copied(id));
  }

  std::unique_ptr<Graph> take() { return std::move(to_); }

 private:
  void copy(const Node& node) {
    Node copy = node;
    for (ValueId& input : copy.inputs) input = copied(input);
    for (ValueId& output : copy.outputs) output = copied(output);
    to_->add_node(std::move(copy));
  }

  ValueId copied(ValueId id) {
    if (id == ValueId::none) return id;
    const auto [found, is_new] = ids_.try_emplace(id, ValueId::none);
    if (!is_new) return found->second;
    const Value& value = from_.value(id);
    const ValueId copy = value.is_constant() ? to_->add_constant(value.name, value.constant)
                                             : to_->add_value(value.name, renamed(types_[index_of(id)]));
    return found->second = copy;
  }

  // Symbols count up, too: what they are called means nothing in another graph.
  TensorType renamed(TensorType type) {
    for (Dim& dim : type.dims) {
      const bool is_made_up = dim.symbol.starts_with('?');
      if (dim.known() || dim.symbol.empty() || (keeps_symbols_ && !is_made_up)) continue;
      dim.symbol = symbols_.try_emplace(dim.symbol, (keeps_symbols_ ? "?n" : "n") + std::to_string(symbols_.size()))
                       .first->second;
    }
    return type;
  }

  const Graph& from_;
  const std::vector<TensorType>& types_;
  const bool keeps_symbols_;
  std::unique_ptr<Graph> to_;
  std::unordered_map<ValueId, ValueId> ids_;
  std::unordered_map<std::string, std::string> symbols_;
};

void append_ids(std::string& key, const std::vector<ValueId>& ids) {
  for (const ValueId id : ids) key += std::to_string(static_cast<int>(id)) + ",";
  key += ';';
}

}  // namespace

std::unique_ptr<Graph> graph_of(const Stage& stage, const Graph& graph, const std::vector<TensorType>& types) {
  return StageCopy(stage, graph, types, false).take();
}

std::unique_ptr<Graph> compacted(const Graph& graph) {
  std::vector<TensorType> types;
  for (size_t v = 0; v < graph.value_count(); ++v) types.push_back(graph.value(static_cast<ValueId>(v)).type);
  return StageCopy({.nodes = graph.order(), .inputs = graph.inputs, .outputs = graph.outputs}, graph, types, true)
      .take();
}

std::string key_of(const Graph& graph) {
  std::string key;
  append_ids(key, graph.inputs);
  append_ids(key, graph.outputs);
  for (size_t v = 0; v < graph.value_count(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    key += to_string(value.type) + (value.is_constant() ? "=" : "|");
    if (value.is_constant() && !append_tensor_key(key, value.constant)) return {};
  }
  for (const NodeId id : graph.order()) {
    const std::string node = node_key(graph, graph.node(id));
    if (node.empty()) return {};
    key += std::to_string(node.size()) + ":" + node;
    append_ids(key, graph.node(id).outputs);
  }
  return key;
}

}  // namespace lathe
