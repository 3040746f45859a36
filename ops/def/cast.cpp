// Cast, CastLike.
#include <cmath>

#include "ops/elementwise.h"
#include "ops/number_cast.h"
#include "ops/pointwise_lowering.h"

namespace lathe::ops {
namespace {

// The target type: the attribute `to`, or the type of CastLike's second input.
template <class Context>
DType target_of(const Context& context) {
  const int64_t to = context.node.attributes.get_int("to", 0);
  if (to <= 0 || to >= kDTypeCount) context.fail("attribute to=" + std::to_string(to) + " is not an element type");
  return static_cast<DType>(to);
}

// Until opset 5 the attribute was a name.
DType target_by_name(const Attributes& attributes) {
  std::string wanted = attributes.get_string("to", "");
  for (char& c : wanted) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (wanted == "float") return DType::f32;
  if (wanted == "double") return DType::f64;
  for (int i = 1; i < kDTypeCount; ++i)
    if (name_of(static_cast<DType>(i)) == wanted) return static_cast<DType>(i);
  return DType::undefined;
}

constexpr int kNumberedSince = 6;

template <class Context>
DType cast_target(const Context& context) {
  if (context.node.version >= kNumberedSince) return target_of(context);
  const DType dtype = target_by_name(context.node.attributes);
  if (dtype == DType::undefined) context.fail("attribute to is not the name of an element type");
  return dtype;
}

void infer_cast(InferContext& context) {
  if (!context.has_input(0)) context.fail("input 0 is missing");
  TensorType type = context.input(0);
  type.dtype = cast_target(context);
  type.layout = {};
  context.set_output(0, std::move(type));
}

void infer_cast_like(InferContext& context) {
  if (!context.has_input(0) || !context.has_input(1)) context.fail("an input is missing");
  TensorType type = context.input(0);
  type.dtype = context.input(1).dtype;
  type.layout = {};
  context.set_output(0, std::move(type));
}

SmallFloatRounding rounding_of(const Node& node) {
  SmallFloatRounding rounding{.saturates = node.attributes.get_int("saturate", 1) != 0};
  const std::string mode = node.attributes.get_string("round_mode", "up");
  if (mode == "down") rounding.scale = ScaleRounding::down;
  if (mode == "nearest") rounding.scale = ScaleRounding::nearest;
  return rounding;
}

void reference_cast(ReferenceContext& context) {
  context.outputs[0] = cast_elements(context.inputs[0], cast_target(context), rounding_of(context.node));
}

void reference_cast_like(ReferenceContext& context) {
  if (!context.has_input(1)) context.fail("input 1 is missing");
  context.outputs[0] = cast_elements(context.inputs[0], context.inputs[1].dtype(), rounding_of(context.node));
}

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }
bool is_exact(DType dtype) { return dtype == DType::f32 || dtype == DType::boolean || is_byte(dtype); }

// Through float32, where that changes nothing.
std::optional<Expression> express(std::span<const TensorType> inputs, DType to) {
  const DType from = inputs[0].dtype;
  const bool is_readable =
      is_exact(from) || from == DType::f16 || from == DType::bf16 || from == DType::i32 || from == DType::i64;
  if (!is_readable) return std::nullopt;
  const bool truncates = !is_integer(from) && from != DType::boolean && is_integer(to);
  const bool is_plain = to == DType::f32 || to == DType::boolean;
  const bool fits =
      to == DType::i32 ? is_exact(from) : is_byte(to) && (from == to || from == DType::boolean || from == DType::f32);
  if (!is_plain && !fits) return std::nullopt;
  ExpressionWriter w(inputs.first(1));
  const int x = w.x(0);
  if (truncates)
    w.select(w.op(ExprOp::less, x, w.constant(0)), w.op(ExprOp::ceil, x), w.op(ExprOp::floor, x));
  else
    w.select(w.constant(0), x, x);
  return w.finish(to);
}

std::optional<Expression> express_cast(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (node.version < kNumberedSince) return express(inputs, target_by_name(node.attributes));
  const int64_t to = node.attributes.get_int("to", 0);
  return to > 0 && to < kDTypeCount ? express(inputs, static_cast<DType>(to)) : std::nullopt;
}

std::optional<Expression> express_cast_like(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (inputs.size() < 2) return std::nullopt;
  std::optional<Expression> expression = express(inputs, inputs[1].dtype);
  if (expression) expression->inputs.push_back(inputs[1].dtype);
  return expression;
}

}  // namespace

std::vector<OpDef> cast_ops() {
  using Kind = AttributeSpec::Kind;
  return {
      {.schema = {.name = "Cast",
                  .attributes = {{"to", Kind::any, true}, {"saturate", Kind::integer}, {"round_mode", Kind::string}},
                  .infer = infer_cast,
                  .reference = reference_cast,
                  .express = express_cast,
                  .layout = LayoutRole::any_same},
       .lower = lower_pointwise},
      {.schema = {.name = "CastLike",
                  .since = 15,
                  .min_inputs = 2,
                  .max_inputs = 2,
                  .attributes = {{"saturate", Kind::integer}, {"round_mode", Kind::string}},
                  .infer = infer_cast_like,
                  .reference = reference_cast_like,
                  .express = express_cast_like},
       .lower = lower_pointwise}};
}

}  // namespace lathe::ops
