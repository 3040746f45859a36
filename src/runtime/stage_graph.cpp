#include "src/runtime/stage_graph.h"

#include <unordered_map>

#include "graph/node_key.h"

namespace lathe {
namespace {

// Copies nodes, and what they read, to a graph of their own: ids count up in the order of use, so that equal stages of
// different layers become equal graphs.
class StageCopy {
 public:
  StageCopy(const Stage& stage, const Graph& graph, const std::vector<TensorType>& types)
      : from_(graph), to_(std::make_unique<Graph>()) {
    to_->name = graph.name;
    const auto type_of = [&](ValueId id) { return types[index_of(id)]; };
    for (const NodeId id : stage.nodes) add(graph.node(id), type_of);
    for (const ValueId id : stage.inputs) to_->inputs.push_back(copied(id, type_of));
    for (const ValueId id : stage.outputs) to_->outputs.push_back(copied(id, type_of));
  }
  // All of the graph, whose nodes and types become the copy's, with the symbols that the model has given.
  explicit StageCopy(Graph&& graph) : from_(graph), keeps_symbols_(true), to_(std::make_unique<Graph>()) {
    to_->name = graph.name;
    const auto type_of = [&](ValueId id) { return std::move(graph.value(id).type); };
    for (const NodeId id : graph.order()) add(std::move(graph.node(id)), type_of);
    for (const ValueId id : graph.inputs) to_->inputs.push_back(copied(id, type_of));
    for (const ValueId id : graph.outputs) to_->outputs.push_back(copied(id, type_of));
  }

  std::unique_ptr<Graph> take() { return std::move(to_); }

 private:
  template <class TypeOf>
  void add(Node node, TypeOf type_of) {
    for (ValueId& input : node.inputs) input = copied(input, type_of);
    for (ValueId& output : node.outputs) output = copied(output, type_of);
    to_->add_node(std::move(node));
  }

  // `type_of` is asked once for each.
  template <class TypeOf>
  ValueId copied(ValueId id, TypeOf type_of) {
    if (id == ValueId::none) return id;
    const auto [found, is_new] = ids_.try_emplace(id, ValueId::none);
    if (!is_new) return found->second;
    const Value& value = from_.value(id);
    const ValueId copy = value.is_constant() ? to_->add_constant(value.name, value.constant)
                                             : to_->add_value(value.name, renamed(type_of(id)));
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
  const bool keeps_symbols_ = false;
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
  return StageCopy(stage, graph, types).take();
}

std::unique_ptr<Graph> compacted(Graph graph) { return StageCopy(std::move(graph)).take(); }

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
