// Min, Max, Sum, Mean: any number of operands. Before opset 8 all must have one shape; broadcasting covers that.
#include <cmath>

#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

// NaN wins.
struct Min {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_floating_point_v<C>)
      if (std::isnan(a) || std::isnan(b)) return a + b;
    return b < a ? b : a;
  }
};
struct Max {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_floating_point_v<C>)
      if (std::isnan(a) || std::isnan(b)) return a + b;
    return a < b ? b : a;
  }
};
struct Sum {
  template <class C>
  C operator()(C a, C b) const {
    return a + b;
  }
};

// Folds the operands from the left in the computing type; `IsMean` divides at the end.
template <class F, unsigned Set, bool IsMean>
void reference(ReferenceContext& context) {
  require_equal_types(context);
  const std::vector<Dims> dims = operand_dims(context);
  Tensor result = make_output(context, context.inputs[0].dtype(), broadcast_dims(context.node, dims));
  visit_elements<Set>(context, result.dtype(), [&]<class T>() {
    using C = Computing<T>;
    for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next())
      for (int64_t i = 0; i < rows.length(); ++i) {
        const auto at = [&](size_t k) {
          return static_cast<C>(elements_of<T>(context.inputs[k])[rows.begin(k) + i * rows.stride(k)]);
        };
        C value = at(0);
        for (size_t k = 1; k < context.inputs.size(); ++k) value = F{}(value, at(k));
        if constexpr (IsMean) value /= static_cast<C>(context.inputs.size());
        elements_of<T>(result)[rows.begin() + i] = static_cast<T>(value);
      }
  });
  context.outputs[0] = std::move(result);
}

constexpr size_t kMostExpressed = 12;

template <ExprOp Op, bool IsMean>
std::optional<Expression> express(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs) || inputs.empty() || inputs.size() > kMostExpressed) return std::nullopt;
  ExpressionWriter w(inputs);
  int value = w.x(0);
  if (inputs.size() == 1 && !IsMean)
    w.select(w.constant(0), value, value);  // a node of its own, so that it is the last
  for (size_t k = 1; k < inputs.size(); ++k) value = w.op(Op, value, w.x(static_cast<int>(k)));
  if (IsMean) w.op(ExprOp::div, value, w.constant(static_cast<float>(inputs.size())));
  return w.finish();
}

template <class F>
bool lower(LowerContext& context) {
  return lower_pointwise(context) || lower_folded_rows(context, F{});
}

OpDef variadic(std::string_view name, ReferenceFn* reference, ExpressFn* express, LowerFn* lower_as) {
  return {.schema = {.name = name,
                     .min_inputs = 1,
                     .max_inputs = -1,
                     .infer = infer_broadcast,
                     .reference = reference,
                     .express = express,
                     .layout = LayoutRole::any_same},
          .lower = lower_as};
}

}  // namespace

std::vector<OpDef> variadic_ops() {
  return {variadic("Min", reference<Min, kNumbers, false>, express<ExprOp::min, false>, lower<Min>),
          variadic("Max", reference<Max, kNumbers, false>, express<ExprOp::max, false>, lower<Max>),
          variadic("Sum", reference<Sum, kReals, false>, express<ExprOp::add, false>, lower_pointwise),
          variadic("Mean", reference<Sum, kReals, true>, express<ExprOp::add, true>, lower_pointwise)};
}

}  // namespace lathe::ops
