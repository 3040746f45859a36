// A factor on an operand of a matrix product moves behind the product, where it joins other pointwise work and does not
// stand between the product and the Transposes before it: (x * c) y = (x y) * c.
#include <cmath>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// The slot of what is scaled by a plain constant; -1: this node is something else.
int scaled_slot(const Graph& graph, const Node& node) {
  if (node.epilogue || node.version < 7 || node.inputs.size() != 2) return -1;
  const bool is_product = is_op(node, "Mul"), is_quotient = is_op(node, "Div");
  if (!is_product && !is_quotient) return -1;
  for (size_t slot = 0; slot < (is_product ? 2u : 1u); ++slot) {
    const ValueId other = node.inputs[1 - slot];
    const std::optional<float> factor = scalar_of(graph, other);
    if (!factor || !std::isfinite(*factor) || *factor == 0) continue;
    if (graph.value(node.inputs[slot]).is_constant()) continue;
    if (broadcasts_into(graph.value(other).type, graph.value(node.inputs[slot]).type)) return static_cast<int>(slot);
  }
  return -1;
}

// Where a factor meets an operand of a product, perhaps behind nodes that only move its elements.
struct Scale {
  NodeId node = NodeId::none;    // none: there is no factor
  NodeId reader = NodeId::none;  // of its result, in `slot`: the product, or the first node that moves
  size_t slot = 0;
  int scaled = 0;  // slot of the node
};

bool moves_elements(const Node& node) { return (is_reshape(node) || is_op(node, "Transpose")) && !node.epilogue; }

Scale scale_of(const Rewriter& rewriter, const Graph& graph, NodeId product, size_t slot) {
  Scale scale{NodeId::none, product, slot};
  while (true) {
    const ValueId read = graph.node(scale.reader).inputs[scale.slot];
    const NodeId producer = graph.value(read).producer;
    if (producer == NodeId::none || !rewriter.is_live(producer) || rewriter.only_user(read) != scale.reader) return {};
    scale.scaled = scaled_slot(graph, graph.node(producer));
    if (scale.scaled >= 0) {
      scale.node = producer;
      return scale;
    }
    if (!moves_elements(graph.node(producer))) return {};
    scale.reader = producer;
    scale.slot = 0;
  }
}

bool sink(Rewriter& rewriter, NodeId product) {
  Graph& graph = rewriter.graph();
  if (!is_op(graph.node(product), "MatMul") || graph.node(product).epilogue) return false;
  if (graph.node(product).inputs[0] == graph.node(product).inputs[1]) return false;
  const ValueId result = graph.node(product).outputs[0];
  if (result == ValueId::none) return false;
  for (size_t slot = 0; slot < 2; ++slot) {
    const auto [scale, reader, read_slot, scaled] = scale_of(rewriter, graph, product, slot);
    const TensorType type = graph.value(result).type;
    if (scale == NodeId::none || type.dtype != DType::f32 || !type.has_rank || type.rank() < 2) continue;
    const ValueId x = graph.node(scale).inputs[static_cast<size_t>(scaled)];
    // The factor's rank must not pass the result's: it has one element, whatever its axes.
    const ValueId factor = graph.node(scale).inputs[1 - static_cast<size_t>(scaled)];
    if (graph.value(factor).type.rank() > type.rank()) continue;

    Node behind = graph.node(scale);
    behind.name.clear();
    const ValueId inner = rewriter.add_value(graph.value(result).name, type);
    rewriter.set_input(reader, read_slot, x);
    rewriter.erase(scale);
    behind.inputs = {inner, factor};
    behind.outputs = {ValueId::none};
    behind.outputs[0] = result;
    // The product makes `inner` now, and the factor's node what the product made.
    rewriter.move_output(inner, product);
    rewriter.add(std::move(behind), product);
    return true;
  }
  return false;
}

}  // namespace

bool sink_scales(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    for (int i = 0; i < 2 && rewriter.is_live(id) && sink(rewriter, id); ++i) {
    }
  });
}

}  // namespace lathe::passes
