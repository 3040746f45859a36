#include "ops/gemm/rectified.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "graph/op_schema.h"
#include "graph/passes/fusion.h"

namespace lathe {
namespace {

bool is_constant(const Expression& expression, int node, float low, float high) {
  const ExprNode& of = expression.nodes[static_cast<size_t>(node)];
  return of.op == ExprOp::constant && of.value >= low && of.value <= high;
}

// max(x, 0), perhaps cut off above.
bool ends_in_rectifier(const Expression& expression) {
  constexpr float kMost = 1e30F;
  for (int i = static_cast<int>(expression.nodes.size()) - 1; i >= 0;) {
    const ExprNode& node = expression.nodes[static_cast<size_t>(i)];
    if (node.op == ExprOp::max) return is_constant(expression, node.a, 0, 0) || is_constant(expression, node.b, 0, 0);
    if (node.op != ExprOp::min) return false;
    if (!is_constant(expression, node.a, 0, kMost) && !is_constant(expression, node.b, 0, kMost)) return false;
    i = is_constant(expression, node.b, 0, kMost) ? node.a : node.b;
  }
  return false;
}

bool moves_or_chooses(const Node& node) {
  static constexpr std::string_view kStandard[] = {"Reshape", "Flatten",   "Squeeze", "Unsqueeze",    "Identity",
                                                   "Dropout", "Transpose", "MaxPool", "GlobalMaxPool"};
  if (node.op->domain == "lathe") return node.op->name == "Reorder";
  return node.op->domain.empty() &&
         std::find(std::begin(kStandard), std::end(kStandard), node.op->name) != std::end(kStandard);
}

}  // namespace

bool is_rectified(const Graph& graph, ValueId value) {
  while (graph.value(value).producer != NodeId::none) {
    const Node& node = graph.node(graph.value(value).producer);
    if (node.outputs[0] != value) return false;
    if (node.epilogue) return ends_in_rectifier(node.epilogue->expression);
    const std::optional<Expression> expression = fusible_expression(graph, node);
    if (expression && ends_in_rectifier(*expression)) return true;
    if (!moves_or_chooses(node)) return false;
    value = node.inputs[0];
  }
  return false;
}

}  // namespace lathe
