// Not, And, Or, Xor.
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/relation.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

struct Not {
  bool operator()(bool x) const { return !x; }
};
struct And {
  bool operator()(bool a, bool b) const { return a && b; }
};
struct Or {
  bool operator()(bool a, bool b) const { return a || b; }
};
struct Xor {
  bool operator()(bool a, bool b) const { return a != b; }
};

bool all_bool(std::span<const TensorType> inputs) {
  for (const TensorType& type : inputs)
    if (type.dtype != DType::boolean) return false;
  return true;
}

std::optional<Expression> express_not(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_bool(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  w.op(ExprOp::logical_not, w.x(0));
  return w.finish(DType::boolean);
}

enum class Gate { conjunction, disjunction, difference };

template <Gate Kind>
std::optional<Expression> express(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_bool(inputs) || has_legacy_alignment(node)) return std::nullopt;
  ExpressionWriter w(inputs);
  const int a = w.x(0), b = w.x(1);
  switch (Kind) {
    case Gate::conjunction:
      w.op(ExprOp::logical_and, a, b);
      break;
    case Gate::disjunction:
      w.op(ExprOp::logical_or, a, b);
      break;
    case Gate::difference:
      w.op(ExprOp::logical_not, w.op(ExprOp::equal, a, b));
      break;
  }
  return w.finish(DType::boolean);
}

// Alone, on bytes: as vectors of float32 they would take four times as long.
template <class F>
bool lower(LowerContext& context) {
  return lower_binary_rows<F, true>(context, {}) || lower_pointwise(context);
}

bool lower_not(LowerContext& context) {
  const RowLoop loop = [](const RowOperands& row) {
    unary_row<uint8_t, uint8_t>(row, [](uint8_t x) { return x == 0; });
  };
  return add_row_step(context, loop, "rows") || lower_pointwise(context);
}

}  // namespace

std::vector<OpDef> logic_ops() {
  return {{.schema = {.name = "Not",
                      .infer = infer_same_bool,
                      .reference = reference_unary<Not, kBools>,
                      .express = express_not,
                      .layout = LayoutRole::any_same},
           .lower = lower_not},
          relation("And", 1, reference_binary<And, kBools>, express<Gate::conjunction>, lower<And>),
          relation("Or", 1, reference_binary<Or, kBools>, express<Gate::disjunction>, lower<Or>),
          relation("Xor", 1, reference_binary<Xor, kBools>, express<Gate::difference>, lower<Xor>)};
}

}  // namespace lathe::ops
