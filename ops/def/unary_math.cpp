// Functions of one number without parameters, from Neg to Atanh, and the tests IsNaN and IsInf.
#include <immintrin.h>

#include <cmath>
#include <concepts>

#include "ops/numbers.h"
#include "ops/pointwise/double_math.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"
#include "ops/pointwise/trigonometry.h"
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
    if constexpr (std::is_floating_point_v<C>) return x > 0 ? C{1} : x < 0 ? C{-1} : x;  // NaN stays
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

using WriteFn = int(ExpressionWriter& w, int x);

template <WriteFn* Write>
std::optional<Expression> express_as(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  Write(w, w.x(0));
  return w.finish();
}

// As many operations as an element takes by functions of <cmath>.
constexpr double kWork = 40;

template <class F, unsigned Set>
bool lower(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  if constexpr (Set == kNumbers) return lower_unary_rows(context, F{});
  return lower_unary_rows(
      context, []<std::floating_point C>(C x) { return F{}(x); }, kWork);
}

// As vectors, which std::sqrt with its error number is not made into.
[[gnu::target("avx2")]] void root_row(const RowOperands& row) {
  const auto* x = static_cast<const double*>(row.in[0]);
  auto* out = static_cast<double*>(row.out);
  int64_t i = 0;
  for (; i + 4 <= row.length; i += 4) _mm256_storeu_pd(out + i, _mm256_sqrt_pd(_mm256_loadu_pd(x + i)));
  for (; i < row.length; ++i) out[i] = std::sqrt(x[i]);
}

template <class F, unsigned Set>
OpDef unary(std::string_view name, int since, ExpressFn* express) {
  return {.schema = {.name = name,
                     .since = since,
                     .infer = infer_same,
                     .reference = reference_unary<F, Set>,
                     .express = express,
                     .layout = LayoutRole::any_same},
          .lower = lower<F, Set>};
}

template <class Test>
bool lower_double_test(LowerContext& context, Test test) {
  if (context.input_type(0).dtype != DType::f64) return lower_pointwise(context);
  return add_row_step(
      context, [test](const RowOperands& row) { unary_row<double, bool>(row, test); }, "rows");
}

bool lower_is_nan(LowerContext& context) {
  return lower_double_test(context, [](double x) { return x != x; });
}

bool lower_is_inf(LowerContext& context) {
  const double positive = context.node.attributes.get_int("detect_positive", 1) != 0 ? INFINITY : NAN;
  const double negative = context.node.attributes.get_int("detect_negative", 1) != 0 ? -INFINITY : NAN;
  return lower_double_test(
      context, [=](double x) { return (static_cast<int>(x == positive) | static_cast<int>(x == negative)) != 0; });
}

OpDef test(std::string_view name, int since, ReferenceFn* reference, ExpressFn* express, LowerFn* lower) {
  return {.schema = {.name = name,
                     .since = since,
                     .infer = infer_same_bool,
                     .reference = reference,
                     .express = express,
                     .layout = LayoutRole::any_same},
          .lower = lower};
}

}  // namespace

std::vector<OpDef> unary_math_ops() {
  namespace t = trigonometry;
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs = {
      unary<Neg, kNumbers>("Neg", 1, express_unary<ExprOp::neg>),
      unary<Abs, kNumbers>("Abs", 1, express_unary<ExprOp::abs>),
      unary<Sqrt, kReals>("Sqrt", 1, express_unary<ExprOp::sqrt>),
      unary<Exp, kReals>("Exp", 1, express_unary<ExprOp::exp>),
      unary<Log, kReals>("Log", 1, express_unary<ExprOp::log>),
      unary<Reciprocal, kReals>("Reciprocal", 1, express_unary<ExprOp::reciprocal>),
      unary<Floor, kReals>("Floor", 1, express_unary<ExprOp::floor>),
      unary<Ceil, kReals>("Ceil", 1, express_unary<ExprOp::ceil>),
      unary<Round, kReals>("Round", 11, express_unary<ExprOp::round_even>),
      unary<Sign, kNumbers>("Sign", 9, express_unary<ExprOp::sign>),
      unary<Sin, kReals>("Sin", 7, express_unary<ExprOp::sin>),
      unary<Cos, kReals>("Cos", 7, express_unary<ExprOp::cos>),
      unary<Erf, kReals>("Erf", 9, express_unary<ExprOp::erf>),
      unary<Tan, kReals>("Tan", 7, express_as<t::tan>),
      unary<Asin, kReals>("Asin", 7, express_as<t::asin>),
      unary<Acos, kReals>("Acos", 7, express_as<t::acos>),
      unary<Atan, kReals>("Atan", 7, express_as<t::atan>),
      unary<Sinh, kReals>("Sinh", 9, express_as<t::sinh>),
      unary<Cosh, kReals>("Cosh", 9, express_as<t::cosh>),
      unary<Asinh, kReals>("Asinh", 9, express_as<t::asinh>),
      unary<Acosh, kReals>("Acosh", 9, express_as<t::acosh>),
      unary<Atanh, kReals>("Atanh", 9, express_as<t::atanh>),
      test("IsNaN", 9, reference_is_nan, express_is_nan, lower_is_nan),
      test("IsInf", 10, reference_is_inf, express_is_inf, lower_is_inf),
  };
  for (OpDef& def : defs) {
    if (def.schema.name == "Sqrt") def.lower = lower_doubles<root_row>;
    if (def.schema.name == "Exp") def.lower = lower_doubles<exp_row>;
    if (def.schema.name == "Log") def.lower = lower_doubles<log_row>;
  }
  defs.back().schema.attributes = {{"detect_negative", Kind::integer}, {"detect_positive", Kind::integer}};
  return defs;
}

}  // namespace lathe::ops
