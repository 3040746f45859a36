#pragma once
// How a gradient passes backward through one node.
#include <string_view>
#include <vector>

#include "graph/expand.h"

namespace lathe {

// One node on the way back: its operands, its result, and the gradient that has come to the result.
class GradientStep {
 public:
  GradientStep(ExpandContext& expansion, const Node& passed, std::vector<ValueId> operands, ValueId result,
               ValueId gradient)
      : context(expansion),
        node(passed),
        inputs(std::move(operands)),
        y(result),
        dy(gradient),
        gradients(inputs.size(), ValueId::none) {}

  ExpandContext& context;
  const Node& node;
  const std::vector<ValueId> inputs;
  const ValueId y, dy;
  std::vector<ValueId> gradients;  // none: the input has no part in it

  // The gradient of an input; summed over the axes along which the input was broadcast.
  void give(size_t input, ValueId gradient);

  ValueId scalar(double value) const;  // of the gradient's type
  ValueId unary(std::string_view op, ValueId x) const { return context.add(op, {x}); }
  ValueId binary(std::string_view op, ValueId a, ValueId b) const { return context.add(op, {a, b}); }
  ValueId shaped_like(ValueId x, ValueId like) const;
  [[noreturn]] void unsupported(const std::string& what) const;  // names the node
};

using GradientRule = void(GradientStep&);
// Null: the operator (of ai.onnx) has no rule.
GradientRule* gradient_rule(std::string_view op);

}  // namespace lathe
