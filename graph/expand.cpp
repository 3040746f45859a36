#include "graph/expand.h"

#include <algorithm>

#include "graph/infer.h"
#include "graph/text.h"
#include "lathe/error.h"
#include "src/base/check.h"

namespace lathe {
namespace {

constexpr int kVersion = 23;  // of the nodes that expansions are made of

void replace_value(std::vector<Node>& nodes, ValueId from, ValueId to) {
  for (Node& node : nodes) {
    std::replace(node.inputs.begin(), node.inputs.end(), from, to);
    std::replace(node.outputs.begin(), node.outputs.end(), from, to);
  }
}

bool makes(const Node& node, ValueId id) {
  return std::find(node.outputs.begin(), node.outputs.end(), id) != node.outputs.end();
}

}  // namespace

ExpandContext::ExpandContext(Graph& graph, const Node& expanded, const OpLookup& ops)
    : node(expanded), graph_(graph), ops_(ops), results_(expanded.outputs.size(), ValueId::none) {}

ValueId ExpandContext::input(int i) const {
  return static_cast<size_t>(i) < node.inputs.size() ? node.inputs[static_cast<size_t>(i)] : ValueId::none;
}

bool ExpandContext::has_output(int i) const {
  return static_cast<size_t>(i) < node.outputs.size() && node.outputs[static_cast<size_t>(i)] != ValueId::none;
}

Tensor ExpandContext::constant_of(ValueId id) const {
  return id == ValueId::none ? Tensor() : graph_.value(id).constant;
}

std::string ExpandContext::fresh_name(std::string_view op) {
  return node.name + "/" + std::string(op) + "~" + std::to_string(graph_.value_count());
}

ValueId ExpandContext::add(std::string_view op, std::vector<ValueId> inputs, NamedAttributes attributes) {
  Attributes given;
  for (const auto& [name, value] : attributes) given.set(name, value);
  return add(op, std::move(inputs), std::move(given));
}

ValueId ExpandContext::add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  return add_many(op, std::move(inputs), 1, std::move(attributes))[0];
}

ValueId ExpandContext::add_own(std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  Node made{.op = &ops_.require("lathe", op), .name = fresh_name(op)};
  made.inputs = std::move(inputs);
  made.attributes = std::move(attributes);
  return append(std::move(made), 1)[0];
}

std::vector<ValueId> ExpandContext::add_many(std::string_view op, std::vector<ValueId> inputs, int outputs,
                                             Attributes attributes) {
  Node made{.op = &ops_.require("", op, kVersion), .version = kVersion, .name = fresh_name(op)};
  while (!inputs.empty() && inputs.back() == ValueId::none) inputs.pop_back();
  made.inputs = std::move(inputs);
  made.attributes = std::move(attributes);
  return append(std::move(made), outputs);
}

std::vector<ValueId> ExpandContext::add_copy(const Node& original, std::vector<ValueId> inputs) {
  Node made = original;
  made.name = fresh_name(original.op->name);
  made.inputs = std::move(inputs);
  made.outputs.clear();
  return append(std::move(made), static_cast<int>(original.outputs.size()));
}

std::vector<ValueId> ExpandContext::append(Node made, int outputs) {
  for (int i = 0; i < outputs; ++i) made.outputs.push_back(graph_.add_value(fresh_name(made.op->name), {}));
  const std::vector<TensorType> types = infer_node(graph_, made);
  for (size_t i = 0; i < made.outputs.size(); ++i) graph_.value(made.outputs[i]).type = types[i];
  nodes_.push_back(std::move(made));
  return nodes_.back().outputs;
}

ValueId ExpandContext::constant(Tensor tensor) {
  return graph_.add_constant(fresh_name("constant"), std::move(tensor));
}

ValueId ExpandContext::longs(std::initializer_list<int64_t> elements) {
  return constant(Tensor::from<int64_t>({static_cast<int64_t>(elements.size())}, elements));
}

void ExpandContext::set_output(int i, ValueId value) {
  if (has_output(i)) results_[static_cast<size_t>(i)] = value;
}

void ExpandContext::fail(const std::string& what) const {
  throw Error(ErrorCode::invalid_model, describe(node) + ": " + what);
}

void ExpandContext::unsupported(const std::string& what) const {
  throw Error(ErrorCode::unsupported, describe(node) + ": " + what + " is not supported");
}

std::vector<Node> ExpandContext::take_nodes() {
  for (size_t i = 0; i < results_.size(); ++i) {
    const ValueId wanted = node.outputs[i];
    if (wanted == ValueId::none) continue;
    LATHE_CHECK(results_[i] != ValueId::none, describe(node) + ": its expansion leaves out an output");
    const bool is_made =
        std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return makes(n, results_[i]); });
    const bool is_taken = std::find(node.outputs.begin(), node.outputs.end(), results_[i]) != node.outputs.end();
    if (!is_made || is_taken) {  // an input or constant as it is, or one value for two outputs
      Node copy{.op = &ops_.require("", "Identity", kVersion), .version = kVersion, .name = fresh_name("Identity")};
      copy.inputs = {results_[i]};
      copy.outputs = {wanted};
      // The name is made of the number of values: one more keeps the next apart.
      graph_.add_value(fresh_name("unused"), {});
      nodes_.push_back(std::move(copy));
    } else {
      const ValueId made = results_[i];
      replace_value(nodes_, made, wanted);
      std::replace(results_.begin(), results_.end(), made, wanted);
    }
  }
  return std::move(nodes_);
}

std::vector<NodeId> put_in_place(Graph& graph, NodeId id, ExpandContext& context) {
  std::vector<Node> parts = context.take_nodes();
  for (ValueId& output : graph.node(id).outputs) {
    if (output != ValueId::none) graph.value(output).producer = NodeId::none;
    output = ValueId::none;
  }
  std::vector<NodeId> added;
  for (Node& part : parts) added.push_back(graph.add_node(std::move(part)));
  return added;
}

bool expand_nodes(Graph& graph, const OpLookup& ops) {
  bool changed = false;
  std::vector<NodeId> order, waiting(graph.order().rbegin(), graph.order().rend());
  while (!waiting.empty()) {
    const NodeId id = waiting.back();
    waiting.pop_back();
    const Node& node = graph.node(id);
    if (node.op->expand == nullptr || node.epilogue) {
      order.push_back(id);
      continue;
    }
    ExpandContext context(graph, node, ops);
    if (!context.node.op->expand(context)) {
      order.push_back(id);
      continue;
    }
    const std::vector<NodeId> added = put_in_place(graph, id, context);
    waiting.insert(waiting.end(), added.rbegin(), added.rend());
    changed = true;
  }
  if (changed) graph.set_order(std::move(order));
  return changed;
}

}  // namespace lathe
