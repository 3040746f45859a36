#include "ops/int8/dynamic_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/int8/int8_crossed.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineBytes = 64;
int64_t whole_lines(int64_t bytes) { return round_up(bytes, kLineBytes); }

Int8Dot dot_of(const DynamicProblem& problem) {
  // Products of bytes have one zero point of B for all columns.
  const bool has_one_zero = problem.b.zeros.size() == 1;
  if (has_vnni(problem.isa) && has_one_zero) return Int8Dot::u8s8;
  if (has_dot(problem.isa, Int8Dot::u8s7) && problem.b.is_signed && has_one_zero && problem.b.zeros[0] == 0) {
    const auto dot = dot_of_small_weights(problem.m, [&](int most) { return problem.b.most <= most; });
    if (dot) return *dot;
  }
  return pays_crossed(problem.isa, problem.m, problem.n, problem.k) ? Int8Dot::crossed : Int8Dot::pairs;
}

// sum * scale [* scale of the column] + added...
GemmEpilogue epilogue_of(const DynamicProblem& problem) {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  const auto input = [&](std::optional<GemmInputAccess> access) {
    e.inputs.push_back(DType::f32);
    if (access) epilogue.inputs.push_back(*access);
    return e.add({.op = ExprOp::input, .a = static_cast<int>(e.inputs.size()) - 1});
  };
  const auto two = [&](ExprOp op, int a, int b) { return e.add({.op = op, .a = a, .b = b}); };
  const int sum = input(std::nullopt);
  int scale = input(GemmInputAccess::uniform);
  if (problem.b.has_column_scales) scale = two(ExprOp::mul, scale, input(GemmInputAccess::columns));
  int result = two(ExprOp::mul, sum, scale);
  for (int i = 0; i < problem.added; ++i) result = two(ExprOp::add, result, input(GemmInputAccess::columns));
  return epilogue;
}

// out[j] = zero * (offset - sums[j]), wrapping around as the sums do.
[[gnu::target("avx2")]] void column_terms(const int32_t* sums, int64_t columns, uint32_t zero, uint32_t offset,
                                          int32_t* out) noexcept {
  for (int64_t j = 0; j < columns; ++j) out[j] = static_cast<int32_t>(zero * (offset - static_cast<uint32_t>(sums[j])));
}

// Unsigned bytes less 128, as signed ones.
[[gnu::target("avx2")]] void flip_signs(uint8_t* bytes, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) bytes[i] ^= 0x80;
}

}  // namespace

// What lies in the memory of quantized rows, in bytes from its beginning.
struct DynamicProduct::Terms {
  explicit Terms(const Int8Problem& problem, int64_t padded)
      : row_bytes(problem.groups() * 4),
        rows(whole_lines(problem.m * row_bytes)),
        columns(rows + whole_lines(problem.m * 4)),
        scale(columns + whole_lines(padded * 4)) {}
  int64_t row_bytes;  // of a row of A, which lie at the beginning
  int64_t rows, columns, scale;
};

DynamicProduct::DynamicProduct(const DynamicProblem& problem, PlanSource& plans)
    : problem_(problem), row_sums_(problem.isa, false) {
  product_problem_ = {.m = problem.m,
                      .n = problem.n,
                      .k = problem.k,
                      .dot = dot_of(problem),
                      .epilogue = epilogue_of(problem),
                      .isa = problem.isa,
                      .threads = problem.threads};
  product_problem_.may_change.assign(product_problem_.epilogue->expression.inputs.size(), false);
  format_ = {product_problem_.dot, problem.isa};
  product_problem_.has_rows =
      product_problem_.dot == Int8Dot::crossed || (!is_wide(product_problem_.dot) && b_zero() != 0);
  plan_ = choose_int8_plan(product_problem_, plans);
  format_.panel_columns = int64_t{plan_.vecs} * vector_lanes(problem.isa);
  product_.emplace(product_problem_, plan_);
  if (!is_wide(product_problem_.dot)) column_sums_.emplace(format_);
}

int32_t DynamicProduct::b_zero() const { return problem_.b.zeros[0] + format_.shift(problem_.b.is_signed); }

std::string DynamicProduct::packed_text() const {
  std::string text = fmt::format("dynamic {} {}x{} panel {} lanes {}", to_string(format_.dot), problem_.k, problem_.n,
                                 format_.panel_columns, vector_lanes(format_.isa));
  if (is_wide(format_.dot)) text += fmt::format(" zeros {}", fmt::join(problem_.b.zeros, " "));
  return text;
}

// The sums of the columns behind the matrix, as the terms of crossed products and of bytes need them.
int64_t DynamicProduct::packed_bytes() const {
  return format_.bytes(problem_.k, problem_.n) + format_.padded(problem_.n) * 4;
}

void DynamicProduct::pack(const void* b, const ByteZeros& zeros, void* out) const noexcept {
  pack_int8({b, problem_.b.is_signed, problem_.k, problem_.n, problem_.n, 1}, format_, zeros, out);
  auto* sums = reinterpret_cast<int32_t*>(static_cast<char*>(out) + format_.bytes(problem_.k, problem_.n));
  if (format_.dot == Int8Dot::crossed) return crossed_column_sums(out, format_, problem_.k, problem_.n, sums);
  if (column_sums_) return (*column_sums_)(out, problem_.k, problem_.n, sums);
  std::fill_n(sums, format_.padded(problem_.n), 0);
}

int64_t DynamicProduct::rows_bytes() const {
  return Terms(product_problem_, format_.padded(problem_.n)).scale + kLineBytes;
}

void DynamicProduct::quantize_rows(const float* a, int64_t stride, const Range& range, const Quantization& q,
                                   void* rows) const noexcept {
  const Terms at(product_problem_, format_.padded(problem_.n));
  auto* row_terms = reinterpret_cast<int32_t*>(static_cast<char*>(rows) + at.rows);
  for (int64_t row = range.begin; row < range.end; ++row) {
    char* out = static_cast<char*>(rows) + row * at.row_bytes;
    if (is_wide(format_.dot)) {
      auto* words = reinterpret_cast<int16_t*>(out);
      quantize_centered(a + row * stride, problem_.k, q, words);
      std::fill(words + problem_.k, words + at.row_bytes / 2, int16_t{0});
    } else {
      quantize(a + row * stride, problem_.k, q, reinterpret_cast<uint8_t*>(out));
      if (shift_of_rows() != 0) flip_signs(reinterpret_cast<uint8_t*>(out), problem_.k);
      std::fill(out + problem_.k, out + at.row_bytes, char{0});
    }
  }
  if (!product_problem_.has_rows) return;
  const char* first = static_cast<const char*>(rows) + range.begin * at.row_bytes;
  const int64_t count = range.end - range.begin;
  if (format_.dot == Int8Dot::crossed) {
    crossed_row_terms(first, count, product_problem_.groups(), at.row_bytes, row_terms + range.begin);
  } else {
    row_sums_({first, false, count, problem_.k, at.row_bytes, 1}, b_zero(), row_terms + range.begin);
  }
}

void DynamicProduct::begin(const Quantization& q, const DynamicOperands& operands, void* rows) const noexcept {
  const int64_t padded = format_.padded(problem_.n);
  const Terms at(product_problem_, padded);
  auto* terms = reinterpret_cast<int32_t*>(static_cast<char*>(rows) + at.columns);
  const auto* sums = reinterpret_cast<const int32_t*>(static_cast<const char*>(operands.weights) +
                                                      format_.bytes(problem_.k, problem_.n));
  if (!is_wide(format_.dot)) {
    const uint32_t offset = static_cast<uint32_t>(b_zero()) * static_cast<uint32_t>(problem_.k);
    column_terms(sums, padded, static_cast<uint32_t>(q.zero + shift_of_rows()), offset, terms);
  } else {
    column_terms(sums, padded, 1, 0, terms);  // 0 where products are not crossed
  }
  *reinterpret_cast<float*>(static_cast<char*>(rows) + at.scale) =
      problem_.b.has_column_scales ? q.scale : q.scale * operands.b_scale[0];
}

void DynamicProduct::run(const DynamicOperands& operands, int share, int shares) const noexcept {
  const Terms at(product_problem_, format_.padded(problem_.n));
  const auto* rows = static_cast<const char*>(operands.rows);
  Int8Operands call;
  call.a = rows;
  call.a_stride = at.row_bytes;
  call.b = operands.weights;
  call.c = operands.c;
  call.c_stride = operands.c_stride * static_cast<int64_t>(sizeof(float));
  call.columns = reinterpret_cast<const int32_t*>(rows + at.columns);
  call.rows = reinterpret_cast<const int32_t*>(rows + at.rows);
  size_t slot = 0;
  call.inputs[slot++] = rows + at.scale;
  if (problem_.b.has_column_scales) call.inputs[slot++] = operands.b_scale;
  for (size_t i = 0; i < static_cast<size_t>(problem_.added); ++i, ++slot) {
    call.inputs[slot] = operands.added[i];
    call.input_strides[slot] = operands.added_strides[i] * static_cast<int64_t>(sizeof(float));
  }
  call.next_weights = operands.next_weights;
  product_->run(call, share, shares);
}

int DynamicProduct::panels() const {
  return plan_.split == GemmSplit::rows ? 1 : static_cast<int>(divide_up(problem_.n, format_.panel_columns));
}

std::string DynamicProduct::text() const { return int8_plan_text(plan_, format_.dot); }

}  // namespace lathe
