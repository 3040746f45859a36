#include "ops/sole_readers.h"

#include <algorithm>

namespace lathe {

SoleReaders::SoleReaders(const Graph& graph) : readers_(graph.value_count(), NodeId::none) {
  std::vector<bool> is_shared(graph.value_count());
  for (const ValueId result : graph.outputs) is_shared[index_of(result)] = true;
  for (const NodeId id : graph.order()) {
    for (const ValueId value : graph.node(id).inputs) {
      if (value == ValueId::none) continue;
      NodeId& reader = readers_[index_of(value)];
      if (reader != NodeId::none && reader != id) is_shared[index_of(value)] = true;
      reader = id;
    }
  }
  for (size_t i = 0; i < readers_.size(); ++i)
    if (is_shared[i]) readers_[i] = NodeId::none;
}

bool reads_first_only(const Node& node, ValueId value) {
  return node.inputs[0] == value && std::count(node.inputs.begin(), node.inputs.end(), value) == 1;
}

}  // namespace lathe
