// Puts together Softmax where an exporter spelled it out: e = exp(x - max(x)), or exp(x), over sum(e).
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;

// The one axis that a reduction takes together and keeps, counted from the front; -1: another reduction.
int64_t kept_axis(const Graph& graph, const Node& node) {
  if (node.attributes.get_int("keepdims", 1) == 0) return -1;
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (input_or_none(node, 1) != ValueId::none) {
    const auto given = integers_of(graph, node.inputs[1]);
    if (!given) return -1;
    axes = *given;
  }
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (axes.size() != 1 || !type.has_rank) return -1;
  return axes[0] < 0 ? axes[0] + type.rank() : axes[0];
}

bool fuse(Rewriter& rewriter, const OpSchema& schema, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& div = graph.node(id);
  if (!is_op(div, "Div") || div.epilogue || div.inputs.size() != 2 || div.outputs[0] == ValueId::none) return false;
  const NodeId sum = rewriter.producer_if(div.inputs[1], "ReduceSum");
  const NodeId exp = rewriter.producer_if(div.inputs[0], "Exp");
  if (sum == NodeId::none || exp == NodeId::none || graph.node(sum).inputs[0] != div.inputs[0]) return false;
  const int64_t axis = kept_axis(graph, graph.node(sum));
  if (axis < 0) return false;
  ValueId x = graph.node(exp).inputs[0];
  if (const NodeId sub = rewriter.producer_if(x, "Sub"); sub != NodeId::none) {
    const NodeId max = rewriter.producer_if(graph.node(sub).inputs[1], "ReduceMax");
    const ValueId source = graph.node(sub).inputs[0];
    if (max != NodeId::none && graph.node(max).inputs[0] == source && kept_axis(graph, graph.node(max)) == axis)
      x = source;
  }
  if (graph.value(x).type.dtype != DType::f32) return false;
  Node node{.op = &schema, .version = kVersion, .name = "", .inputs = {x}, .outputs = {div.outputs[0]}};
  node.attributes.set("axis", axis);
  rewriter.erase(id);
  rewriter.add(std::move(node), id);
  return true;
}

}  // namespace

bool fuse_softmax(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "Softmax", kVersion);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fuse(rewriter, *schema, id); });
}

}  // namespace lathe::passes
