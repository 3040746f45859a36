// Functions of one number without parameters, from Neg to Atanh, and the tests IsNaN and IsInf.
#include <cmath>

#include "ops/elementwise.h"
#include "ops/numbers.h"
#include "ops/pointwise_lowering.h"
#include "ops/small_floats.h"

namespace lathe::ops {
namespace {

template <class C>
C negated(C x) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(uint64_t{0} - static_cast<uint64_t>(x));
  else
    return -x;
}

struct Neg {
  template <class C>
  C operator()(C x) const {
    return negated(x);
  }
};
struct Abs {
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_integral_v<C>)
      return std::is_signed_v<C> && x < C{0} ? negated(x) : x;
    else
      return std::fabs(x);
  }
};
struct Sign {
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>)
      if (std::isnan(x)) return x;
    return static_cast<C>((x > C{0}) - (x < C{0}));
  }
};

// Adapts a function of <cmath> that has overloads for float and double.
#define LATHE_MATH_FUNCTOR(Name, expression) \
  struct Name {                              \
    template <class C>                       \
    C operator()(C x) const {                \
      return expression;                     \
    }                                        \
  }
LATHE_MATH_FUNCTOR(Sqrt, std::sqrt(x));
LATHE_MATH_FUNCTOR(Exp, std::exp(x));
LATHE_MATH_FUNCTOR(Log, std::log(x));
LATHE_MATH_FUNCTOR(Reciprocal, C{1} / x);
LATHE_MATH_FUNCTOR(Floor, std::floor(x));
LATHE_MATH_FUNCTOR(Ceil, std::ceil(x));
LATHE_MATH_FUNCTOR(Round, std::nearbyint(x));
LATHE_MATH_FUNCTOR(Sin, std::sin(x));
LATHE_MATH_FUNCTOR(Cos, std::cos(x));
LATHE_MATH_FUNCTOR(Tan, std::tan(x));
LATHE_MATH_FUNCTOR(Asin, std::asin(x));
LATHE_MATH_FUNCTOR(Acos, std::acos(x));
LATHE_MATH_FUNCTOR(Atan, std::atan(x));
LATHE_MATH_FUNCTOR(Sinh, std::sinh(x));
LATHE_MATH_FUNCTOR(Cosh, std::cosh(x));
LATHE_MATH_FUNCTOR(Asinh, std::asinh(x));
LATHE_MATH_FUNCTOR(Acosh, std::acosh(x));
LATHE_MATH_FUNCTOR(Atanh, std::atanh(x));
LATHE_MATH_FUNCTOR(Erf, std::erf(x));
#undef LATHE_MATH_FUNCTOR

// Float8 types are tested through their values.
template <class Test>
void reference_float_test(ReferenceContext& context, Test test) {
  const Tensor& x = context.inputs[0];
  Tensor result = make_output(context, DType::boolean, x.dims());
  bool* out = elements_of<bool>(result);
  if (is_small_float(x.dtype())) {
    for (int64_t i = 0; i < x.size(); ++i) out[i] = test(small_float_value(x.dtype(), elements_of<uint8_t>(x)[i]));
  } else {
    visit_elements<kReals>(context, x.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < x.size(); ++i) out[i] = test(static_cast<Computing<T>>(elements_of<T>(x)[i]));
    });
  }
  context.outputs[0] = std::move(result);
}

void reference_is_nan(ReferenceContext& context) {
  reference_float_test(context, [](auto x) { return std::isnan(x); });
}
void reference_is_inf(ReferenceContext& context) {
  const bool positive = context.node.attributes.get_int("detect_positive", 1) != 0;
  const bool negative = context.node.attributes.get_int("detect_negative", 1) != 0;
  reference_float_test(context, [=](auto x) { return std::isinf(x) && (x > 0 ? positive : negative); });
}

std::optional<Expression> express_is_nan(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  w.op(ExprOp::is_nan, w.x(0));
  return w.finish(DType::boolean);
}

std::optional<Expression> express_is_inf(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  const bool positive = node.attributes.get_int("detect_positive", 1) != 0;
  const bool negative = node.attributes.get_int("detect_negative", 1) != 0;
  const int x = w.x(0);
  const int is_positive = w.op(ExprOp::equal, x, w.constant(positive ? INFINITY : NAN));
  const int is_negative = w.op(ExprOp::equal, x, w.constant(negative ? -INFINITY : NAN));
  w.op(ExprOp::logical_or, is_positive, is_negative);
  return w.finish(DType::boolean);
}

OpDef unary(std::string_view name, int since, ReferenceFn* reference, ExpressFn* express) {
  return {.schema = {.name = name,
                     .since = since,
                     .infer = infer_same,
                     .reference = reference,
                     .express = express,
                     .layout = express != nullptr ? LayoutRole::any_same : LayoutRole::plain_only},
          .lower = express != nullptr ? lower_pointwise : nullptr};
}

}  // namespace

std::vector<OpDef> unary_math_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs = {
      unary("Neg", 1, reference_unary<Neg, kNumbers>, express_unary<ExprOp::neg>),
      unary("Abs", 1, reference_unary<Abs, kNumbers>, express_unary<ExprOp::abs>),
      unary("Sqrt", 1, reference_unary<Sqrt, kReals>, express_unary<ExprOp::sqrt>),
      unary("Exp", 1, reference_unary<Exp, kReals>, express_unary<ExprOp::exp>),
      unary("Log", 1, reference_unary<Log, kReals>, express_unary<ExprOp::log>),
      unary("Reciprocal", 1, reference_unary<Reciprocal, kReals>, express_unary<ExprOp::reciprocal>),
      unary("Floor", 1, reference_unary<Floor, kReals>, express_unary<ExprOp::floor>),
      unary("Ceil", 1, reference_unary<Ceil, kReals>, express_unary<ExprOp::ceil>),
      unary("Round", 11, reference_unary<Round, kReals>, express_unary<ExprOp::round_even>),
      unary("Sign", 9, reference_unary<Sign, kNumbers>, express_unary<ExprOp::sign>),
      unary("Sin", 7, reference_unary<Sin, kReals>, express_unary<ExprOp::sin>),
      unary("Cos", 7, reference_unary<Cos, kReals>, express_unary<ExprOp::cos>),
      unary("Erf", 9, reference_unary<Erf, kReals>, express_unary<ExprOp::erf>),
      unary("Tan", 7, reference_unary<Tan, kReals>, nullptr),
      unary("Asin", 7, reference_unary<Asin, kReals>, nullptr),
      unary("Acos", 7, reference_unary<Acos, kReals>, nullptr),
      unary("Atan", 7, reference_unary<Atan, kReals>, nullptr),
      unary("Sinh", 9, reference_unary<Sinh, kReals>, nullptr),
      unary("Cosh", 9, reference_unary<Cosh, kReals>, nullptr),
      unary("Asinh", 9, reference_unary<Asinh, kReals>, nullptr),
      unary("Acosh", 9, reference_unary<Acosh, kReals>, nullptr),
      unary("Atanh", 9, reference_unary<Atanh, kReals>, nullptr),
      unary("IsNaN", 9, reference_is_nan, express_is_nan),
      unary("IsInf", 10, reference_is_inf, express_is_inf),
  };
  for (OpDef& def : defs)
    if (def.schema.name == "IsNaN" || def.schema.name == "IsInf") def.schema.infer = infer_same_bool;
  defs.back().schema.attributes = {{"detect_negative", Kind::integer}, {"detect_positive", Kind::integer}};
  return defs;
}

}  // namespace lathe::ops
