// Add, Sub, Mul, Div, Mod, Pow.
#include <algorithm>
#include <cmath>

#include "ops/numbers.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

// Integers wrap around: computed without sign, where that is defined. 8 and 16 bits go through int.
template <class C, class F>
C wrapping(C a, C b, F f) {
  if constexpr (std::is_integral_v<C>) {
    using Wide = std::conditional_t<(sizeof(C) > 4), uint64_t, uint32_t>;
    return static_cast<C>(f(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return f(a, b);
  }
}

struct Add {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Sub {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};

// Integer quotients truncate. The most negative by -1: itself. By zero: refused by reference_division().
struct Div {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C> && sizeof(C) <= 4) {
      // By vectors of float64, where no quotient of 32 bits rounds up to a whole number that it does not reach: it is
      // less by 1 / b, a part of at least 2^-32.
      const bool is_negation = std::is_signed_v<C> && b == static_cast<C>(-1);
      const C divisor = b == 0 || is_negation ? C{1} : b;
      const C quotient = static_cast<C>(static_cast<double>(a) / static_cast<double>(divisor));
      const C negated = wrapping(C{0}, a, [](auto x, auto y) { return x - y; });
      return b == 0 ? C{0} : is_negation ? negated : quotient;
    } else if constexpr (std::is_integral_v<C>) {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<C>)
        if (b == -1) return wrapping(C{0}, a, [](auto x, auto y) { return x - y; });
      return static_cast<C>(a / b);
    } else {
      return a / b;
    }
  }
};

// std::fmod, exactly. Of float32 numbers that are not too far apart in float64: quotient and product need no rounding
// there, but for a quotient just below an integer, which the remainder's sign gives away.
template <class C>
C remainder_of(C a, C b) {
  if constexpr (std::is_same_v<C, float>) {
    const double x = std::fabs(static_cast<double>(a)), y = std::fabs(static_cast<double>(b)), quotient = x / y;
    if (quotient < 1) return a;
    if (quotient < 0x1p28) {
      double rest = x - static_cast<double>(static_cast<int64_t>(quotient)) * y;
      if (rest < 0) rest += y;
      return std::copysign(static_cast<float>(rest), a);
    }
  }
  return std::fmod(a, b);
}

// The divisor's sign, as in Python; with `fmod` the dividend's, as in C.
struct Mod {
  explicit Mod(const Node& node) : is_fmod(node.attributes.get_int("fmod", 0) != 0) {}
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<C>)
        if (b == -1) return 0;
      const C rest = static_cast<C>(a % b);
      if (!is_fmod && rest != 0 && (rest < 0) != (b < 0)) return static_cast<C>(rest + b);
      return rest;
    } else {
      const C rest = remainder_of(a, b);
      if (is_fmod) return rest;
      if (rest == 0) return std::copysign(rest, b);
      return (rest < 0) != (b < 0) ? rest + b : rest;
    }
  }
  bool is_fmod;
};

// Integers have no quotient by zero, and the text gives it no meaning.
void require_nonzero_divisor(const ReferenceContext& context) {
  if (context.inputs[0].size() == 0 || !is_integer(context.inputs[1].dtype())) return;
  visit_elements<kIntegers>(context, context.inputs[1].dtype(), [&]<class T>() {
    const T* divisors = elements_of<T>(context.inputs[1]);
    const int64_t at = std::find(divisors, divisors + context.inputs[1].size(), T{0}) - divisors;
    if (at != context.inputs[1].size()) context.fail("divides by zero: element " + std::to_string(at) + " of input 1");
  });
}

// Integers are divided where the divisor is known not to be zero.
bool has_divisors(const LowerContext& context) {
  const Tensor divisors = context.constant(1);
  if (!is_integer(context.input_type(1).dtype)) return true;
  if (!divisors.defined()) return false;
  bool is_found = false;
  visit_row_type(divisors.dtype(), [&]<class T>() {
    const std::span<const T> elements = divisors.elements<T>();
    return is_found = std::find(elements.begin(), elements.end(), T{0}) != elements.end();
  });
  return !is_found;
}

template <class F>
bool lower_binary(LowerContext& context) {
  return lower_pointwise(context) || lower_binary_rows(context, functor_for<F>(context.node));
}

template <class F>
bool lower_division(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  return has_divisors(context) && lower_binary_rows(context, functor_for<F>(context.node));
}

template <class F>
void reference_division(ReferenceContext& context) {
  require_nonzero_divisor(context);
  reference_binary<F, kNumbers>(context);
}

template <class B, class E>
B power(B base, E exponent) {
  if constexpr (std::is_integral_v<B> && std::is_integral_v<E>) {
    if (exponent < 0) {
      if (base == 1) return 1;
      if constexpr (std::is_signed_v<B>)
        if (base == -1) return exponent % 2 == 0 ? B{1} : B{-1};
      return 0;
    }
    uint64_t result = 1, factor = static_cast<uint64_t>(base);
    for (auto left = static_cast<uint64_t>(exponent); left != 0; left >>= 1, factor *= factor)
      if ((left & 1) != 0) result *= factor;
    return static_cast<B>(result);
  } else if constexpr (std::is_integral_v<B>) {
    const double value = std::pow(static_cast<double>(base), static_cast<double>(exponent));
    if (std::isnan(value)) return 0;
    if (std::fabs(value) < 9.2e18) return static_cast<B>(static_cast<int64_t>(value));
    return value < 0 ? std::numeric_limits<B>::min() : std::numeric_limits<B>::max();
  } else if constexpr (std::is_same_v<B, float> && std::is_same_v<E, float>) {
    return std::pow(base, exponent);
  } else {
    return static_cast<B>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
}

void reference_pow(ReferenceContext& context) {
  const std::vector<Dims> dims = operand_dims(context);
  const Tensor& base = context.inputs[0];
  const Tensor& exponent = context.inputs[1];
  Tensor result = make_output(context, base.dtype(), broadcast_dims(context.node, dims));
  visit_elements<kNumbers>(context, base.dtype(), [&]<class B>() {
    visit_elements<kNumbers>(context, exponent.dtype(), [&]<class E>() {
      for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next())
        for (int64_t i = 0; i < rows.length(); ++i)
          elements_of<B>(result)[rows.begin() + i] = static_cast<B>(
              power(static_cast<Computing<B>>(elements_of<B>(base)[rows.begin(0) + i * rows.stride(0)]),
                    static_cast<Computing<E>>(elements_of<E>(exponent)[rows.begin(1) + i * rows.stride(1)])));
    });
  });
  context.outputs[0] = std::move(result);
}

// Of float32: also by a known exponent of another type.
std::optional<Expression> express_pow(const Node& node, std::span<const TensorType> inputs,
                                      const ConstantOf& constant) {
  if (inputs[0].dtype != DType::f32 || inputs[1].dtype == DType::f32 || has_legacy_alignment(node))
    return express_binary<ExprOp::pow>(node, inputs, constant);
  const Tensor exponent = constant(1);
  if (!exponent.defined() || exponent.size() != 1 || exponent.rank() > inputs[0].rank()) return std::nullopt;
  ExpressionWriter w(inputs);
  const int base = w.x(0);
  w.op(ExprOp::pow, base, w.constant(static_cast<float>(reals_of(exponent)[0])));
  return w.finish();
}

struct Pow {
  template <class C>
  C operator()(C base, C exponent) const {
    return power(base, exponent);
  }
};
struct Square {
  template <class C>
  C operator()(C base, C) const {
    return Mul{}(base, base);
  }
};
struct Cube {
  template <class C>
  C operator()(C base, C) const {
    return Mul{}(Mul{}(base, base), base);
  }
};

bool lower_pow(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  const Tensor exponent = context.constant(1);
  const double known = exponent.defined() && exponent.size() == 1 ? reals_of(exponent)[0] : 0;
  if (known == 2) return lower_binary_rows(context, Square{});
  if (known == 3 && is_integer(exponent.dtype())) return lower_binary_rows(context, Cube{});
  return lower_binary_rows(context, Pow{});
}

using Kind = AttributeSpec::Kind;

OpDef binary(std::string_view name, ReferenceFn* reference, ExpressFn* express, LowerFn* lower) {
  return {.schema = {.name = name,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .attributes = {{"axis", Kind::integer}, {"broadcast", Kind::integer}},
                     .infer = infer_broadcast,
                     .reference = reference,
                     .express = express,
                     .layout = LayoutRole::any_same},
          .lower = lower};
}

}  // namespace

std::vector<OpDef> arithmetic_ops() {
  OpDef pow = binary("Pow", reference_pow, express_pow, lower_pow);
  pow.schema.infer = infer_broadcast_mixed;
  return {binary("Add", reference_binary<Add, kNumbers>, express_binary<ExprOp::add>, lower_binary<Add>),
          binary("Sub", reference_binary<Sub, kNumbers>, express_binary<ExprOp::sub>, lower_binary<Sub>),
          binary("Mul", reference_binary<Mul, kNumbers>, express_binary<ExprOp::mul>, lower_binary<Mul>),
          binary("Div", reference_division<Div>, express_binary<ExprOp::div>, lower_division<Div>),
          {.schema = {.name = "Mod",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"fmod", Kind::integer}},
                      .infer = infer_broadcast,
                      .reference = reference_division<Mod>},
           .lower = lower_division<Mod>},
          pow};
}

}  // namespace lathe::ops
