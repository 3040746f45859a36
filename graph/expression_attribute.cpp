// Four integers a node: operation, and the operands a, b, c. Constants lie in a list of floats, one for each node.
#include "graph/expression_attribute.h"

#include <algorithm>

#include "lathe/error.h"
#include "src/base/check.h"

namespace lathe {
namespace {

constexpr size_t kFields = 4;
constexpr int64_t kLastOp = static_cast<int64_t>(ExprOp::select);

[[noreturn]] void fail(const std::string& name) {
  throw Error(ErrorCode::invalid_model, "attribute '" + name + "' is no expression");
}

}  // namespace

void set_expression(Attributes& attributes, const std::string& name, const Expression& expression) {
  LATHE_CHECK(expression.output == DType::f32, "only float32 expressions become attributes");
  std::vector<int64_t> nodes;
  std::vector<float> constants;
  for (const ExprNode& node : expression.nodes) {
    nodes.insert(nodes.end(), {static_cast<int64_t>(node.op), node.a, node.b, node.c});
    constants.push_back(node.value);
  }
  attributes.set(name, std::move(nodes));
  attributes.set(name + "_constants", std::move(constants));
}

std::optional<Expression> get_expression(const Attributes& attributes, const std::string& name) {
  if (!attributes.has(name)) return std::nullopt;
  const std::vector<int64_t> nodes = attributes.get_ints(name);
  const std::vector<float> constants = attributes.get_floats(name + "_constants");
  if (nodes.empty() || nodes.size() != kFields * constants.size()) fail(name);
  Expression expression;
  int inputs = 0;
  constexpr int64_t kMostInputs = 64;
  for (size_t i = 0; i < constants.size(); ++i) {
    const int64_t* fields = nodes.data() + kFields * i;
    if (fields[0] < 0 || fields[0] > kLastOp) fail(name);
    ExprNode node{static_cast<ExprOp>(fields[0]), -1, -1, -1, constants[i]};
    int* operands[] = {&node.a, &node.b, &node.c};
    for (int k = 0; k < operand_count(node.op); ++k) {
      if (fields[1 + k] < 0 || fields[1 + k] >= static_cast<int64_t>(i)) fail(name);
      *operands[k] = static_cast<int>(fields[1 + k]);
    }
    if (node.op == ExprOp::input) {
      if (fields[1] < 0 || fields[1] >= kMostInputs) fail(name);
      node.a = static_cast<int>(fields[1]);
      inputs = std::max(inputs, node.a + 1);
    }
    expression.add(node);
  }
  expression.inputs.assign(static_cast<size_t>(std::max(inputs, 1)), DType::f32);
  return expression;
}

}  // namespace lathe
