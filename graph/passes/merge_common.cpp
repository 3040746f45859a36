// Equal nodes over equal inputs, and equal constants, become one. Exporters that fold a transpose into shared weights
// write these once for each use.
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

}  // namespace

bool merge_common(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  bool changed = merge_constants(rewriter);
  std::unordered_map<std::string, NodeId> seen;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    bool is_output = false;
    for (const ValueId output : node.outputs)
      is_output = is_output || (output != ValueId::none && rewriter.is_output(output));
    std::string key = node_key(graph, node);
    if (key.empty()) continue;
    const auto [found, is_new] = seen.try_emplace(std::move(key), id);
    if (is_new || is_output) continue;
    const std::vector<ValueId> mine = node.outputs, others = graph.node(found->second).outputs;
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
