#include "ops/gemm/rectified.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/op_schema.h"
#include "graph/passes/fusion.h"

namespace lathe {
namespace {

bool is_constant(const Expression& expression, int node, float low, float high) {
  const ExprNode& of = expression.nodes[static_cast<size_t>(node)];
  return of.op == ExprOp::constant && of.value >= low && of.value <= high;
}

// max(x, 0), perhaps cut off above, squared, or times something, as a gate is.
bool ends_in_rectifier(const Expression& expression) {
  constexpr float kMost = 1e30F;
  std::vector<bool> is_rectified;  // by node
  for (const ExprNode& node : expression.nodes) {
    const auto is_either = [&](float low, float high) {
      return is_constant(expression, node.a, low, high) || is_constant(expression, node.b, low, high);
    };
    const auto was = [&](int operand) { return is_rectified[static_cast<size_t>(operand)]; };
    bool is = false;
    if (node.op == ExprOp::max) is = is_either(0, 0);
    if (node.op == ExprOp::min) is = is_either(0, kMost) && (was(node.a) || was(node.b));
    if (node.op == ExprOp::mul) is = was(node.a) || was(node.b);
    if (node.op == ExprOp::pow) is = was(node.a) && is_constant(expression, node.b, 0.5F, kMost);
    is_rectified.push_back(is);
  }
  return !is_rectified.empty() && is_rectified.back();
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
