// A Reshape before a pointwise node with no other operand but scalars goes behind it: the node comes next to what may
// take it in, and the Reshape next to what may undo it. So it does behind several that read it, and one another, if one
// result alone leaves them, as of a GELU.
#include <algorithm>
#include <unordered_map>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool is_pointwise(const Node& node) {
  return node.op->domain.empty() && node.op->express != nullptr && !node.epilogue && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 && node.outputs[0] != ValueId::none &&
         !is_one_of(node, {"QuantizeLinear", "DequantizeLinear", "PRelu"});
}

// Broadcasts to any shape without changing it.
bool is_plain_scalar(const Graph& graph, ValueId id) {
  const TensorType& type = graph.value(id).type;
  if (type.has_rank && type.rank() == 0) return true;
  return is_scalar(type) && graph.value(id).is_constant() && type.rank() == 1;
}

// The slot of the only operand that is no scalar; nullopt: there are others, or one that would change the shape.
std::optional<size_t> lone_operand(const Graph& graph, const Node& node) {
  std::optional<size_t> lone;
  for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
    if (node.inputs[slot] == ValueId::none || is_plain_scalar(graph, node.inputs[slot])) continue;
    if (lone) return std::nullopt;
    lone = slot;
  }
  return lone;
}

// One element along one axis may be the other operand.
bool has_axes(const TensorType& type) { return type.has_rank && type.rank() > 0; }

bool sink(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_pointwise(node)) return false;
  const std::optional<size_t> slot = lone_operand(graph, node);
  if (!slot) return false;
  const ValueId shaped = node.inputs[*slot], result = node.outputs[0];
  const NodeId reshape = graph.value(shaped).producer;
  if (reshape == NodeId::none || !rewriter.is_live(reshape) || rewriter.only_user(shaped) != id) return false;
  if (!is_plain_reshape(graph.node(reshape))) return false;
  const ValueId source = graph.node(reshape).inputs[0];
  const TensorType from = graph.value(source).type;
  if (!has_axes(from) || !has_axes(graph.value(shaped).type)) return false;
  TensorType type = from;
  type.dtype = graph.value(result).type.dtype;
  if (type.dtype == DType::undefined) return false;
  const ValueId inner = rewriter.add_value(graph.value(result).name, std::move(type));
  Node moved = graph.node(id), behind = graph.node(reshape);
  moved.inputs[*slot] = source;
  moved.outputs = {inner};
  behind.inputs[0] = inner;
  behind.outputs = {result};
  rewriter.erase(id);
  rewriter.erase(reshape);
  rewriter.add(std::move(moved), id);
  rewriter.add(std::move(behind), id);
  return true;
}

// Pointwise nodes of which all read the values of a Reshape, or one another's, and nothing else but scalars.
class Cluster {
 public:
  Cluster(Rewriter& rewriter, ValueId shaped) : rewriter_(rewriter) {
    take_in(shaped);
    for (size_t i = 0; i < values_.size(); ++i) {
      for (const Graph::Use& use : rewriter.uses(values_[i])) {
        if (nodes_.size() > kMost) return;
        if (reads_only_these(use.node)) take_in(use.node);
      }
    }
  }

  // In order; more than kMost: there may be others.
  const std::vector<NodeId>& nodes() const { return nodes_; }

  // The one value that others read, if all else stays among the nodes.
  ValueId exit() const {
    if (nodes_.size() > kMost) return ValueId::none;
    ValueId found = ValueId::none;
    for (const ValueId value : values_) {
      const bool is_inner = !rewriter_.is_output(value) && rewriter_.all_users(value, [&](NodeId user) {
        return std::find(nodes_.begin(), nodes_.end(), user) != nodes_.end();
      });
      if (is_inner) continue;
      if (found != ValueId::none) return ValueId::none;
      found = value;
    }
    return found == values_[0] ? ValueId::none : found;
  }

 private:
  static constexpr size_t kMost = 16;

  bool has(ValueId id) const { return std::find(values_.begin(), values_.end(), id) != values_.end(); }
  bool reads_only_these(NodeId id) const {
    const Node& node = rewriter_.graph().node(id);
    if (!is_pointwise(node) || std::find(nodes_.begin(), nodes_.end(), id) != nodes_.end()) return false;
    if (rewriter_.graph().value(node.outputs[0]).type.dtype == DType::undefined) return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input == ValueId::none || has(input) || is_plain_scalar(rewriter_.graph(), input);
    });
  }
  void take_in(ValueId value) { values_.push_back(value); }
  void take_in(NodeId id) {
    nodes_.push_back(id);
    take_in(rewriter_.graph().node(id).outputs[0]);
  }

  Rewriter& rewriter_;
  std::vector<ValueId> values_;
  std::vector<NodeId> nodes_;
};

void sink_below_cluster(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node reshape = graph.node(id);
  const ValueId shaped = reshape.outputs[0];
  const TensorType from = graph.value(reshape.inputs[0]).type;
  if (!has_axes(from) || !has_axes(graph.value(shaped).type) || rewriter.has_one_use(shaped)) return;
  const Cluster cluster(rewriter, shaped);
  const ValueId exit = cluster.exit();
  if (exit == ValueId::none) return;
  std::unordered_map<ValueId, ValueId> flat = {{shaped, reshape.inputs[0]}};
  rewriter.erase(id);
  for (const NodeId member : cluster.nodes()) {
    Node moved = graph.node(member);
    for (ValueId& input : moved.inputs)
      if (const auto found = flat.find(input); found != flat.end()) input = found->second;
    TensorType type = from;
    type.dtype = graph.value(moved.outputs[0]).type.dtype;
    const ValueId result = rewriter.add_value(graph.value(moved.outputs[0]).name, std::move(type));
    flat.emplace(moved.outputs[0], result);
    moved.outputs = {result};
    rewriter.erase(member);
    rewriter.add(std::move(moved), member);
  }
  Node behind = reshape;
  behind.inputs[0] = flat.at(exit);
  behind.outputs = {exit};
  rewriter.add(std::move(behind), cluster.nodes().back());
}

}  // namespace

bool sink_reshapes(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (!sink(rewriter, id) && is_plain_reshape(graph.node(id))) sink_below_cluster(rewriter, id);
  });
}

}  // namespace lathe::passes
