#pragma once
// Building one Expression from several pointwise nodes.
#include <map>
#include <optional>
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

// The node as an expression over its inputs (by slot), when it may be computed in float32 with results equal to those
// of its own element types: float32 arithmetic, logic, and the conversions that Expression covers exactly.
std::optional<Expression> fusible_expression(const Graph& graph, const Node& node);

class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(const Graph& graph) : graph_(&graph) {}

  // The next input of the expression.
  void add_input(ValueId id);
  // Appends the node's expression: operands are values added before, or new inputs; scalar constants become constants
  // of the expression. The node's output 0 can be an operand afterwards.
  void append(const Node& node, const Expression& expression);
  // As append, for a result that goes by another name than the node's output.
  void append_as(ValueId result, const Node& node, const std::vector<ValueId>& operands, const Expression& expression);

  const std::vector<ValueId>& inputs() const { return inputs_; }
  bool has_input(ValueId id) const;
  // A scalar constant that becomes part of the expression; not when the rank of the node's result comes from it.
  bool absorbs(ValueId id, const Node& node) const;
  size_t size() const { return expression_.nodes.size(); }
  // Ends in the value that was appended last.
  Expression finish(DType output) const;
  // Exchanges two inputs by number.
  void swap_inputs(size_t a, size_t b);

 private:
  int operand(ValueId id, const Node& node);
  int add(ExprOp op, int a, int b = -1);
  int constant(float value);
  int as_stored(int index, DType dtype);

  const Graph* graph_;  // a pointer: builders are copied to remember the best of several
  Expression expression_;
  std::vector<ValueId> inputs_;
  int result_ = -1;
  std::map<ValueId, int> computed_;  // value -> node of the expression
};

}  // namespace lathe
