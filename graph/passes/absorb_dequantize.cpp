// An operand of an integer product's epilogue that was dequantized is read as bytes.
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

// scale * (x - zero)
Expression dequantization(const Graph& graph, const Dequantized& operand) {
  Expression e;
  e.inputs = {graph.value(operand.bytes).type.dtype};
  int x = e.add({.op = ExprOp::input, .a = 0});
  if (const Tensor zero = constant_of(graph, operand.zero); zero.defined()) {
    const float value = zero.dtype() == DType::u8 ? *zero.data<uint8_t>() : *zero.data<int8_t>();
    if (value != 0) {
      const int shift = e.add({.op = ExprOp::constant, .value = value});
      x = e.add({.op = ExprOp::sub, .a = x, .b = shift});
    }
  }
  const int scale = e.add({.op = ExprOp::constant, .value = *operand.scale.data<float>()});
  e.add({.op = ExprOp::mul, .a = x, .b = scale});
  return e;
}

bool absorb(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const int count = graph.node(id).epilogue->inputs;
  for (int i = 0; i < count; ++i) {
    Node& node = graph.node(id);
    const size_t first = node.inputs.size() - static_cast<size_t>(count), slot = first + static_cast<size_t>(i);
    const auto operand = dequantized(rewriter, node.inputs[slot]);
    if (!operand || !operand->is_per_tensor() || graph.value(operand->bytes).type.dtype == DType::i32) continue;
    // The operand's place in the expression moves to the end.
    node.epilogue->expression = substitute(node.epilogue->expression, i + 1, dequantization(graph, *operand));
    std::vector<ValueId> extras(node.inputs.begin() + static_cast<std::ptrdiff_t>(first), node.inputs.end());
    extras.erase(extras.begin() + i);
    extras.push_back(operand->bytes);
    for (size_t k = 0; k < extras.size(); ++k) rewriter.set_input(id, first + k, extras[k]);
    return true;
  }
  return false;
}

}  // namespace

bool absorb_dequantize(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    if (!is_integer_product(graph.node(id)) || !graph.node(id).epilogue) continue;
    while (absorb(rewriter, id)) {
    }
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
