// Cast, CastLike.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/number_cast.h"
#include "ops/pointwise/pointwise_lowering.h"
#include "ops/pointwise/row_loops.h"
#include "src/base/half_rows.h"

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

// ---- Lowering of what expressions cannot do: wide integers and float64, a plain loop; to 16-bit floats by F16C

// Towards zero, held to the type's range, NaN as 0: as cast_elements does. Of float32 and float64.
template <class R, class T>
R truncated(T value) {
  constexpr T kTop = 9223372036854775808.0;
  auto whole = static_cast<int64_t>(value < kTop && value >= -kTop ? value : T{0});
  if (value >= kTop) whole = std::numeric_limits<int64_t>::max();
  if (value < -kTop) whole = std::numeric_limits<int64_t>::min();
  return static_cast<R>(whole);
}

template <class T, class R>
R converted(T value) {
  if constexpr (std::is_same_v<R, bool>) {
    return value != T{0};
  } else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<R>) {
    return truncated<R>(value);
  } else {
    return static_cast<R>(value);
  }
}

// Most numbers fit 32 bits, whose conversion has a vector form that marks the others.
[[gnu::target("avx2")]] void widen_row(const RowOperands& row) {
  const auto* x = static_cast<const float*>(row.in[0]);
  auto* out = static_cast<int64_t*>(row.out);
  int64_t i = 0;
  for (; i + 8 <= row.length; i += 8) {
    const __m256i whole = _mm256_cvttps_epi32(_mm256_loadu_ps(x + i));
    const __m256i beyond = _mm256_cmpeq_epi32(whole, _mm256_set1_epi32(std::numeric_limits<int32_t>::min()));
    if (_mm256_testz_si256(beyond, beyond) == 0) {
      for (int64_t k = i; k < i + 8; ++k) out[k] = truncated<int64_t>(x[k]);
      continue;
    }
    const __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(whole));
    const __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(whole, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 4), high);
  }
  for (; i < row.length; ++i) out[i] = truncated<int64_t>(x[i]);
}

RowLoop row_loop(DType from, DType to) {
  RowLoop loop;
  visit_row_type(from, [&]<class T>() {
    return visit_row_type(to, [&]<class R>() {
      loop = [](const RowOperands& row) { unary_row<T, R>(row, converted<T, R>); };
      return true;
    });
  });
  return loop;
}

void narrow_row(const RowOperands& row) {
  floats_to_halves(static_cast<const float*>(row.in[0]), row.length, static_cast<uint16_t*>(row.out));
}

void narrow_bfloat_row(const RowOperands& row) {
  floats_to_bfloats(static_cast<const float*>(row.in[0]), row.length, static_cast<uint16_t*>(row.out));
}

// Integers and bool to float16 by way of float32, which has all that float16 does not round to infinity.
template <class T>
[[gnu::target("avx2")]] void narrow_integer_row(const RowOperands& row) {
  constexpr int64_t kPiece = 256;
  const T* x = static_cast<const T*>(row.in[0]);
  auto* out = static_cast<uint16_t*>(row.out);
  float piece[kPiece];
  for (int64_t begin = 0; begin < row.length; begin += kPiece) {
    const int64_t count = std::min(kPiece, row.length - begin);
    for (int64_t i = 0; i < count; ++i) piece[i] = static_cast<float>(x[begin + i]);
    floats_to_halves(piece, count, out + begin);
  }
}

RowLoop narrow_loop(DType from) {
  RowLoop loop;
  visit_row_type(from, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) loop = narrow_integer_row<T>;
    return true;
  });
  return loop;
}

bool lower(LowerContext& context) {
  if (lower_pointwise(context)) return true;
  const DType from = context.input_type(0).dtype, to = context.output_type(0).dtype;
  RowLoop loop = row_loop(from, to);
  if (from == DType::f32 && to == DType::i64) loop = widen_row;
  if (from == DType::f32 && to == DType::f16) loop = narrow_row;
  if (from != DType::f32 && to == DType::f16) loop = narrow_loop(from);
  if (from == DType::f32 && to == DType::bf16) loop = narrow_bfloat_row;
  return loop && context.input_count() == 1 && add_row_step(context, loop, "convert rows");
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
       .lower = lower},
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
