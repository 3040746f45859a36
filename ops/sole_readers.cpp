#include "ops/sole_readers.h"

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

}  // namespace lathe
