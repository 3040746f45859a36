#include "graph/graph.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "graph/op_schema.h"
#include "graph/text.h"
#include "lathe/error.h"
#include "src/base/check.h"

namespace lathe {

size_t Node::own_input_count() const {
  const size_t fused = epilogue ? static_cast<size_t>(epilogue->inputs) : 0;
  return inputs.size() - fused - static_cast<size_t>(captures);
}

std::string Node::origin() const { return fused_from.empty() ? std::string(op->name) : fused_from; }

Graph::Graph() = default;
Graph::Graph(const Graph&) = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(const Graph&) = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

ValueId Graph::add_value(std::string value_name, TensorType type) {
  values_.push_back({std::move(value_name), std::move(type), Tensor(), NodeId::none});
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId Graph::add_constant(std::string value_name, Tensor tensor) {
  LATHE_CHECK(tensor.defined(), "constant " + in_quotes(value_name) + " without elements");
  const ValueId id = add_value(std::move(value_name), TensorType::of(tensor.dtype(), tensor.dims()));
  value(id).constant = std::move(tensor);
  return id;
}

NodeId Graph::add_node(Node node) {
  const NodeId id = static_cast<NodeId>(nodes_.size());
  for (ValueId output : node.outputs) {
    if (output == ValueId::none) continue;
    Value& made = value(output);
    LATHE_CHECK(made.producer == NodeId::none && !made.is_constant(),
                describe(node) + ": output " + in_quotes(made.name) + " is made twice");
    made.producer = id;
  }
  nodes_.push_back(std::move(node));
  order_.push_back(id);
  return id;
}

void Graph::fold(NodeId id, std::vector<Tensor> results) {
  std::vector<ValueId>& slots = node(id).outputs;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == ValueId::none) continue;
    Value& folded = value(slots[i]);
    folded.type = TensorType::of(results[i].dtype(), results[i].dims());
    folded.constant = std::move(results[i]);
    folded.producer = NodeId::none;
    slots[i] = ValueId::none;
  }
}

std::vector<std::vector<Graph::Use>> Graph::uses() const {
  std::vector<std::vector<Use>> uses(values_.size());
  for (NodeId id : order_) {
    const std::vector<ValueId>& slots = node(id).inputs;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot] != ValueId::none) uses[index_of(slots[slot])].push_back({id, static_cast<int>(slot)});
    }
  }
  return uses;
}

bool Graph::is_output(ValueId id) const { return std::find(outputs.begin(), outputs.end(), id) != outputs.end(); }

bool Graph::is_input(ValueId id) const { return std::find(inputs.begin(), inputs.end(), id) != inputs.end(); }

void Graph::sort() {
  // Kahn's algorithm; among ready nodes the one that stands first at present goes first, so a sorted order is kept.
  std::vector<int> position(nodes_.size(), -1);
  for (size_t i = 0; i < order_.size(); ++i) position[index_of(order_[i])] = static_cast<int>(i);
  const auto is_behind_producers = [&](NodeId id) {
    return std::all_of(node(id).inputs.begin(), node(id).inputs.end(), [&](ValueId input) {
      const NodeId producer = input == ValueId::none ? NodeId::none : value(input).producer;
      return producer == NodeId::none || position[index_of(producer)] < position[index_of(id)];
    });
  };
  // Passes ask whenever they have changed something, and most leave a sorted order.
  if (std::all_of(order_.begin(), order_.end(), is_behind_producers)) return;
  std::vector<int> missing(order_.size(), 0);
  std::vector<std::vector<int>> users(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    for (ValueId input : node(order_[i]).inputs) {
      if (input == ValueId::none) continue;
      const NodeId producer = value(input).producer;
      if (producer == NodeId::none || position[index_of(producer)] < 0) continue;
      users[static_cast<size_t>(position[index_of(producer)])].push_back(static_cast<int>(i));
      ++missing[i];
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] == 0) ready.push(static_cast<int>(i));
  }
  std::vector<NodeId> sorted;
  sorted.reserve(order_.size());
  while (!ready.empty()) {
    const size_t i = static_cast<size_t>(ready.top());
    ready.pop();
    sorted.push_back(order_[i]);
    for (int user : users[i]) {
      if (--missing[static_cast<size_t>(user)] == 0) ready.push(user);
    }
  }
  if (sorted.size() != order_.size()) {
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](int count) { return count > 0; });
    const Node& culprit = node(order_[static_cast<size_t>(stuck - missing.begin())]);
    const auto output =
        std::find_if(culprit.outputs.begin(), culprit.outputs.end(), [](ValueId id) { return id != ValueId::none; });
    throw Error(ErrorCode::invalid_model, describe(culprit) + ": depends on its own output " +
                                              (output == culprit.outputs.end() ? "" : in_quotes(value(*output).name)) +
                                              " (the graph has a cycle)");
  }
  order_ = std::move(sorted);
}

void Graph::drop_unused_constants() {
  std::vector<bool> is_used(values_.size(), false);
  const auto mark = [&](const std::vector<ValueId>& ids) {
    for (ValueId id : ids) {
      if (id != ValueId::none) is_used[index_of(id)] = true;
    }
  };
  mark(inputs);
  mark(outputs);
  for (NodeId id : order_) mark(node(id).inputs);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!is_used[i]) values_[i].constant = Tensor();
  }
}

}  // namespace lathe
