#include "graph/passes/inline_body.h"

namespace lathe {

std::vector<ValueId> inline_body(Rewriter& rewriter, const Graph& body, const std::vector<ValueId>& arguments,
                                 const std::string& prefix, NodeId place, BodyTypes types) {
  Graph& graph = rewriter.graph();
  std::vector<ValueId> outer(body.value_count(), ValueId::none);
  for (size_t i = 0; i < body.inputs.size(); ++i) outer[index_of(body.inputs[i])] = arguments[i];
  for (size_t i = 0; i < outer.size(); ++i) {
    const Value& value = body.value(static_cast<ValueId>(i));
    if (outer[i] != ValueId::none) continue;
    const std::string name = prefix + "/" + value.name;
    if (value.is_constant()) {
      outer[i] = rewriter.add_constant(name, value.constant);
    } else {
      outer[i] =
          rewriter.add_value(name, types == BodyTypes::kept ? value.type : TensorType::unranked(value.type.dtype));
    }
  }
  const auto translate = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = id == ValueId::none ? id : outer[index_of(id)];
  };
  for (const NodeId id : body.order()) {
    Node node = body.node(id);
    node.name = prefix + "/" + node.name + "~" + std::to_string(graph.value_count());
    translate(node.inputs);
    translate(node.outputs);
    rewriter.add(std::move(node), place);
  }
  return outer;
}

}  // namespace lathe
