#pragma once
// Elementwise operators over element types that expressions do not compute with (64-bit integers, float64, ...): a
// plain loop over the rows of a broadcast result, which the compiler turns into vector code. Rows are as long as the
// operands' strides allow and are split over threads.
#include <functional>
#include <string>
#include <type_traits>

#include "ops/lower.h"

namespace lathe {

// Operands of one row; a stride is in elements, and 0 where one element serves the whole row.
struct RowOperands {
  static constexpr int kMost = 3;

  const void* in[kMost];
  int64_t stride[kMost];
  void* out;
  int64_t length;
};
using RowLoop = std::function<void(const RowOperands&)>;

// One step for this node, whose operands all broadcast to its output as in NumPy. `work`: of an element, in floating
// point operations. False: a layout or an epilogue that rows do not know.
bool add_row_step(LowerContext& context, const RowLoop& loop, const std::string& kernel, double work = 4);

// The loops are compiled for AVX2, which is the least that Lathe runs on.
// Requires: the operand has the result's extents.
template <class T, class R, class F>
[[gnu::target("avx2")]] void unary_row(const RowOperands& row, const F& f) {
  const T* x = static_cast<const T*>(row.in[0]);
  R* out = static_cast<R*>(row.out);
  const int64_t length = row.length;
  for (int64_t i = 0; i < length; ++i) out[i] = static_cast<R>(f(x[i]));
}

template <class T, class R, class F>
[[gnu::target("avx2")]] void binary_row(const RowOperands& row, const F& f) {
  const T *a = static_cast<const T*>(row.in[0]), *b = static_cast<const T*>(row.in[1]);
  R* out = static_cast<R*>(row.out);
  const int64_t step = row.stride[0], other = row.stride[1], length = row.length;
  if (step == 1 && other == 1) {
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<R>(f(a[i], b[i]));
  } else if (step == 1 && other == 0) {
    const T y = *b;
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<R>(f(a[i], y));
  } else if (step == 0 && other == 1) {
    const T x = *a;
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<R>(f(x, b[i]));
  } else {
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<R>(f(a[i * step], b[i * other]));
  }
}

// out = f(out, operand `k`).
template <class T, class F>
[[gnu::target("avx2")]] void fold_row(const RowOperands& row, int k, const F& f) {
  const T* x = static_cast<const T*>(row.in[k]);
  T* out = static_cast<T*>(row.out);
  const int64_t step = row.stride[k], length = row.length;
  if (step == 1) {
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(f(out[i], x[i]));
  } else if (step == 0) {
    const T y = *x;
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(f(out[i], y));
  } else {
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(f(out[i], x[i * step]));
  }
}

// Types worth a loop: what index arithmetic and masks are made of.
template <class Visit>
bool visit_row_type(DType dtype, Visit visit) {
  if (dtype == DType::i64) return visit.template operator()<int64_t>();
  if (dtype == DType::i32) return visit.template operator()<int32_t>();
  if (dtype == DType::f64) return visit.template operator()<double>();
  if (dtype == DType::f32) return visit.template operator()<float>();
  if (dtype == DType::u8) return visit.template operator()<uint8_t>();
  if (dtype == DType::i8) return visit.template operator()<int8_t>();
  if (dtype == DType::boolean) return visit.template operator()<bool>();
  return false;
}

// result = f(x), of the operand's type. `work`: as add_row_step.
template <class F>
bool lower_unary_rows(LowerContext& context, const F& f, double work = 4) {
  if (context.input_count() != 1 || context.input_type(0).dtype != context.output_type(0).dtype) return false;
  return visit_row_type(context.input_type(0).dtype, [&]<class T>() {
    if constexpr (std::is_invocable_v<F, T> && !std::is_same_v<T, bool>) {
      return add_row_step(
          context, [f](const RowOperands& row) { unary_row<T, T>(row, f); }, "rows", work);
    }
    return false;
  });
}

// result = f(a, b) of two operands of one type; `is_test`: the result is bool.
template <class F, bool IsTest = false>
bool lower_binary_rows(LowerContext& context, const F& f) {
  if (context.input_count() != 2 || context.input_type(0).dtype != context.input_type(1).dtype) return false;
  return visit_row_type(context.input_type(0).dtype, [&]<class T>() {
    constexpr bool kComputes = std::is_invocable_v<F, T, T> && (IsTest || !std::is_same_v<T, bool>);
    if constexpr (kComputes) {
      using R = std::conditional_t<IsTest, bool, T>;
      return add_row_step(
          context, [f](const RowOperands& row) { binary_row<T, R>(row, f); }, "rows");
    }
    return false;
  });
}

// result = f(f(a, b), c) of up to RowOperands::kMost operands of one type.
template <class F>
bool lower_folded_rows(LowerContext& context, const F& f) {
  const int operands = context.input_count();
  if (operands < 2 || operands > RowOperands::kMost) return false;
  return visit_row_type(context.input_type(0).dtype, [&]<class T>() {
    if constexpr (std::is_invocable_v<F, T, T> && !std::is_same_v<T, bool>) {
      const auto loop = [f, operands](const RowOperands& row) {
        binary_row<T, T>(row, f);
        for (int k = 2; k < operands; ++k) fold_row<T>(row, k, f);
      };
      return add_row_step(context, loop, "rows");
    }
    return false;
  });
}

}  // namespace lathe
