#pragma once
// What the files of elementwise operators share: inference by broadcasting, references from one functor for all element
// types, expressions from one ExprOp.
//
// A functor is a template `C operator()(C a, ...)` over the computing type: float for float32, float16 and bfloat16,
// else the element type itself. If it can be made from a Node it is (attributes), else by default.
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "ops/copy/copy_elements.h"
#include "ops/op_def.h"
#include "ops/pointwise/broadcast.h"
#include "src/base/half.h"

namespace lathe {

// Sets of element types, for the dispatch of references.
inline constexpr unsigned kReals = 1, kIntegers = 2, kBools = 4, kNumbers = kReals | kIntegers;

// Calls visit.template operator()<T>() with the C++ type of `dtype` if it is in `Set`; fails as the context does.
template <unsigned Set, class Visit>
void visit_elements(const ReferenceContext& context, DType dtype, Visit visit) {
  if constexpr ((Set & kReals) != 0) {
    if (dtype == DType::f32) return visit.template operator()<float>();
    if (dtype == DType::f64) return visit.template operator()<double>();
    if (dtype == DType::f16) return visit.template operator()<Float16>();
    if (dtype == DType::bf16) return visit.template operator()<BFloat16>();
  }
  if constexpr ((Set & kIntegers) != 0) {
    if (dtype == DType::i64) return visit.template operator()<int64_t>();
    if (dtype == DType::i32) return visit.template operator()<int32_t>();
    if (dtype == DType::i16) return visit.template operator()<int16_t>();
    if (dtype == DType::i8) return visit.template operator()<int8_t>();
    if (dtype == DType::u64) return visit.template operator()<uint64_t>();
    if (dtype == DType::u32) return visit.template operator()<uint32_t>();
    if (dtype == DType::u16) return visit.template operator()<uint16_t>();
    if (dtype == DType::u8) return visit.template operator()<uint8_t>();
  }
  if constexpr ((Set & kBools) != 0) {
    if (dtype == DType::boolean) return visit.template operator()<bool>();
  }
  context.fail("element type " + std::string(name_of(dtype)) + " is not supported");
}

template <class T>
inline constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
using Computing = std::conditional_t<is_half<T>, float, T>;

template <class T>
const T* elements_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.raw());
}
template <class T>
T* elements_of(Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_raw());
}

template <class F>
F functor_for(const Node& node) {
  if constexpr (std::is_constructible_v<F, const Node&>)
    return F(node);
  else
    return F{};
}

// --- inference -----------------------------------------------------------------------------------------------------

// Output of the first input's type and shape.
void infer_same(InferContext& context);
// Output bool of the first input's shape.
void infer_same_bool(InferContext& context);
// Output is the broadcast of all inputs; types must agree (infer_mixed: the first one's type; infer_compare: bool).
void infer_broadcast(InferContext& context);
void infer_broadcast_mixed(InferContext& context);
void infer_broadcast_bool(InferContext& context);

// --- references ----------------------------------------------------------------------------------------------------

// All inputs broadcast; fails when element types differ.
std::vector<Dims> operand_dims(const ReferenceContext& context);
void require_equal_types(const ReferenceContext& context);

// result[...] = f(a[...], ...) for `Count` operands of type T each.
template <class T, class R, size_t Count, class F>
void broadcast_into(const ReferenceContext& context, Tensor& result, const std::vector<Dims>& dims, F f) {
  std::array<const T*, Count> in;
  for (size_t k = 0; k < Count; ++k) in[k] = elements_of<T>(context.inputs[k]);
  R* out = elements_of<R>(result);
  using C = Computing<T>;
  for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next()) {
    const int64_t begin = rows.begin();
    for (int64_t i = 0; i < rows.length(); ++i) {
      const auto at = [&](size_t k) { return static_cast<C>(in[k][rows.begin(k) + i * rows.stride(k)]); };
      if constexpr (Count == 1)
        out[begin + i] = static_cast<R>(f(at(0)));
      else
        out[begin + i] = static_cast<R>(f(at(0), at(1)));
    }
  }
}

template <class F, unsigned Set>
void reference_unary(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor result = make_output(context, x.dtype(), x.dims());
  const F f = functor_for<F>(context.node);
  visit_elements<Set>(context, x.dtype(), [&]<class T>() {
    const T* in = elements_of<T>(x);
    T* out = elements_of<T>(result);
    for (int64_t i = 0; i < x.size(); ++i) out[i] = static_cast<T>(f(static_cast<Computing<T>>(in[i])));
  });
  context.outputs[0] = std::move(result);
}

template <class F, unsigned Set>
void reference_binary(ReferenceContext& context) {
  require_equal_types(context);
  const std::vector<Dims> dims = operand_dims(context);
  Tensor result = make_output(context, context.inputs[0].dtype(), broadcast_dims(context.node, dims));
  const F f = functor_for<F>(context.node);
  visit_elements<Set>(context, result.dtype(), [&]<class T>() { broadcast_into<T, T, 2>(context, result, dims, f); });
  context.outputs[0] = std::move(result);
}

template <class F, unsigned Set>
void reference_compare(ReferenceContext& context) {
  require_equal_types(context);
  const std::vector<Dims> dims = operand_dims(context);
  Tensor result = make_output(context, DType::boolean, broadcast_dims(context.node, dims));
  visit_elements<Set>(context, context.inputs[0].dtype(),
                      [&]<class T>() { broadcast_into<T, bool, 2>(context, result, dims, F{}); });
  context.outputs[0] = std::move(result);
}

// --- expressions ---------------------------------------------------------------------------------------------------

using ConstantOf = std::function<Tensor(int)>;

// Writes an Expression in the order of evaluation: b.mul(b.x(0), b.constant(2)).
class ExpressionWriter {
 public:
  explicit ExpressionWriter(std::span<const TensorType> inputs);
  int x(int i) { return expression_.add({.op = ExprOp::input, .a = i}); }
  int constant(float value) { return expression_.add({.op = ExprOp::constant, .value = value}); }
  int op(ExprOp op, int a, int b = -1, int c = -1) { return expression_.add({.op = op, .a = a, .b = b, .c = c}); }
  int add(int a, int b) { return op(ExprOp::add, a, b); }
  int sub(int a, int b) { return op(ExprOp::sub, a, b); }
  int mul(int a, int b) { return op(ExprOp::mul, a, b); }
  int select(int condition, int yes, int no) { return op(ExprOp::select, condition, yes, no); }
  Expression finish(DType output = DType::f32) {
    expression_.output = output;
    return std::move(expression_);
  }

 private:
  Expression expression_;
};

bool all_float32(std::span<const TensorType> inputs);

template <ExprOp Op>
std::optional<Expression> express_unary(const Node&, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs)) return std::nullopt;
  ExpressionWriter w(inputs);
  w.op(Op, w.x(0));
  return w.finish();
}

template <ExprOp Op>
std::optional<Expression> express_binary(const Node& node, std::span<const TensorType> inputs, const ConstantOf&) {
  if (!all_float32(inputs) || has_legacy_alignment(node)) return std::nullopt;
  ExpressionWriter w(inputs);
  const int a = w.x(0);
  w.op(Op, a, w.x(1));
  return w.finish();
}

}  // namespace lathe
