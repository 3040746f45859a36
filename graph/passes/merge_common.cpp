// Equal nodes over equal inputs, and equal constants, become one. Exporters that fold a transpose into shared weights
// write these once for each use.
#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>

#include "graph/node_key.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool merge_constants(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  std::unordered_map<std::string, ValueId> seen;
  bool changed = false;
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const auto id = static_cast<ValueId>(i);
    const Value& value = graph.value(id);
    if (!value.is_constant() || value.constant.dtype() == DType::string || graph.is_input(id)) continue;
    if (!rewriter.is_used(id)) continue;
    const bool is_large = value.constant.bytes() > kComparedBytes;
    std::string key;
    if (is_large) {
      key = sample_of(value.constant);
    } else {
      append_tensor_key(key, value.constant);
    }
    const auto [found, is_new] = seen.try_emplace(std::move(key), id);
    if (is_new || rewriter.is_output(id)) continue;
    if (is_large && !are_equal(graph.value(found->second).constant, value.constant)) continue;
    changed = rewriter.replace(id, found->second) || changed;
  }
  return changed;
}

// Nearly all nodes have inputs of their own: keys, which say all, are made of those only that do not.
class FirstOfEqual {
 public:
  explicit FirstOfEqual(const Graph& graph) : graph_(graph) { seen_.reserve(graph.order().size()); }

  // The first node that was asked for and is equal; itself where there is none.
  NodeId of(NodeId id) {
    const size_t hash = hash_of(graph_.node(id));
    const auto [begin, end] = seen_.equal_range(hash);
    if (begin != end) {
      const std::string key = node_key(graph_, graph_.node(id));
      const auto is_equal = [&](const auto& one) { return node_key(graph_, graph_.node(one.second)) == key; };
      const auto found = key.empty() ? end : std::find_if(begin, end, is_equal);
      if (found != end) return found->second;
    }
    seen_.emplace(hash, id);
    return id;
  }

 private:
  static size_t hash_of(const Node& node) {
    constexpr size_t kOdd = 0x9e3779b97f4a7c15;
    size_t hash = std::hash<const void*>()(node.op) + node.outputs.size();
    for (const ValueId input : node.inputs) hash = (hash ^ static_cast<size_t>(input)) * kOdd ^ hash >> 29;
    return hash;
  }

  const Graph& graph_;
  std::unordered_multimap<size_t, NodeId> seen_;
};

}  // namespace

bool merge_common(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  bool changed = merge_constants(rewriter);
  FirstOfEqual seen(graph);
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    bool is_output = false;
    for (const ValueId output : node.outputs)
      is_output = is_output || (output != ValueId::none && rewriter.is_output(output));
    const NodeId first = seen.of(id);
    if (first == id || is_output) continue;
    const std::vector<ValueId> mine = node.outputs, others = graph.node(first).outputs;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i] != ValueId::none) rewriter.replace(mine[i], others[i]);
    }
    rewriter.erase(id);
    changed = true;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
