// Equal, Less, LessOrEqual, Greater, GreaterOrEqual.
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/relation.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

template <class Compare>
struct Ordered {
  template <class C>
  bool operator()(C a, C b) const {
    return Compare{}(a, b);
  }
};

void reference_equal(ReferenceContext& context) {
  if (context.inputs.empty() || !context.has_input(0) || context.inputs[0].dtype() != DType::string)
    return reference_compare<Ordered<std::equal_to<>>, kNumbers | kBools>(context);
  require_equal_types(context);
  const std::vector<Dims> dims = operand_dims(context);
  Tensor result = make_output(context, DType::boolean, broadcast_dims(context.node, dims));
  const auto* a = context.inputs[0].data<std::string>();
  const auto* b = context.inputs[1].data<std::string>();
  for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next())
    for (int64_t i = 0; i < rows.length(); ++i)
      elements_of<bool>(result)[rows.begin() + i] =
          a[rows.begin(0) + i * rows.stride(0)] == b[rows.begin(1) + i * rows.stride(1)];
  context.outputs[0] = std::move(result);
}

bool is_exact_in_float32(DType dtype) {
  return dtype == DType::f32 || dtype == DType::u8 || dtype == DType::i8 || dtype == DType::boolean;
}

template <ExprOp Op, bool IsSwapped>
std::optional<Expression> express(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (has_legacy_alignment(node)) return std::nullopt;
  for (const TensorType& type : inputs)
    if (!is_exact_in_float32(type.dtype)) return std::nullopt;
  ExpressionWriter w(inputs);
  const int a = w.x(0), b = w.x(1);
  IsSwapped ? w.op(Op, b, a) : w.op(Op, a, b);
  return w.finish(DType::boolean);
}

template <class Compare>
bool lower(LowerContext& context) {
  return lower_pointwise(context) || lower_binary_rows<Ordered<Compare>, true>(context, {});
}

}  // namespace

std::vector<OpDef> comparison_ops() {
  return {
      relation("Equal", 1, reference_equal, express<ExprOp::equal, false>, lower<std::equal_to<>>),
      relation("Less", 1, reference_compare<Ordered<std::less<>>, kNumbers>, express<ExprOp::less, false>,
               lower<std::less<>>),
      relation("Greater", 1, reference_compare<Ordered<std::greater<>>, kNumbers>, express<ExprOp::less, true>,
               lower<std::greater<>>),
      relation("LessOrEqual", 12, reference_compare<Ordered<std::less_equal<>>, kNumbers>,
               express<ExprOp::less_equal, false>, lower<std::less_equal<>>),
      relation("GreaterOrEqual", 12, reference_compare<Ordered<std::greater_equal<>>, kNumbers>,
               express<ExprOp::less_equal, true>, lower<std::greater_equal<>>),
  };
}

}  // namespace lathe::ops
