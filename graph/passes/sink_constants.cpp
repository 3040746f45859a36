// Constants that a body captures move into the body: there they can be folded, fused and packed like any other.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Body input `slot` becomes a constant.
std::shared_ptr<const Graph> with_constant(const Graph& body, size_t slot, const Tensor& tensor) {
  auto changed = std::make_shared<Graph>(body);
  Value& value = changed->value(changed->inputs[slot]);
  value.constant = tensor;
  value.type = TensorType::of(tensor.dtype(), tensor.dims());
  changed->inputs.erase(changed->inputs.begin() + static_cast<std::ptrdiff_t>(slot));
  return changed;
}

// Capture number `capture` of the node goes away.
void sink(Node& node, size_t capture, const Tensor& tensor) {
  const size_t from_end = static_cast<size_t>(node.captures) - capture;
  const auto sunk = [&](const Graph& body) { return with_constant(body, body.inputs.size() - from_end, tensor); };
  std::vector<std::pair<std::string, Attribute>> changed;
  for (const auto& [name, attribute] : node.attributes) {
    if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
      changed.emplace_back(name, sunk(**body));
    } else if (const auto* bodies = std::get_if<std::vector<std::shared_ptr<const Graph>>>(&attribute)) {
      std::vector<std::shared_ptr<const Graph>> all;
      for (const auto& each : *bodies) all.push_back(sunk(*each));
      changed.emplace_back(name, std::move(all));
    }
  }
  for (auto& [name, attribute] : changed) node.attributes.set(name, std::move(attribute));
  node.inputs.erase(node.inputs.begin() + static_cast<std::ptrdiff_t>(node.own_input_count() + capture));
  --node.captures;
}

}  // namespace

bool sink_constants(Graph& graph, const PassContext&) {
  bool changed = false;
  for (const NodeId id : graph.order()) {
    Node& node = graph.node(id);
    for (size_t capture = static_cast<size_t>(node.captures); capture-- > 0;) {
      const Tensor tensor = constant_of(graph, node.inputs[node.own_input_count() + capture]);
      if (!tensor.defined()) continue;
      sink(node, capture, tensor);
      changed = true;
    }
  }
  return changed;
}

}  // namespace lathe::passes
