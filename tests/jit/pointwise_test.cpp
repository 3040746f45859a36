// The generated pointwise loop against plain evaluation: random element types, accesses and lengths, with operands that
// end at (and begin behind) pages without access.
#include "jit/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "src/base/half.h"
#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::GuardedBytes;
using testing::isas_here;

void write_element(DType dtype, std::byte* at, int value) {
  const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f16:
      return put(Float16(static_cast<float>(value)).bits);
    case DType::bf16:
      return put(BFloat16(static_cast<float>(value)).bits);
    case DType::u8:
      return put(static_cast<uint8_t>(value));
    case DType::i8:
      return put(static_cast<int8_t>(value));
    case DType::u16:
      return put(static_cast<uint16_t>(value));
    case DType::i16:
      return put(static_cast<int16_t>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::i64:
      return put(static_cast<int64_t>(value));
    default:
      return put(value != 0);
  }
}

float read_element(DType dtype, const std::byte* at) {
  const auto get = [&]<class T>(T typed) {
    std::memcpy(&typed, at, sizeof typed);
    return static_cast<float>(typed);
  };
  switch (dtype) {
    case DType::f32:
      return get(0.0F);
    case DType::u8:
      return get(uint8_t{});
    case DType::i8:
      return get(int8_t{});
    case DType::u16:
      return get(uint16_t{});
    case DType::i16:
      return get(int16_t{});
    case DType::i32:
      return get(int32_t{});
    default:
      return get(uint8_t{});
  }
}

int random_value(std::mt19937& random, DType dtype) {
  if (dtype == DType::boolean) return static_cast<int>(random() % 2);
  const int value = static_cast<int>(random() % 100);
  return dtype == DType::u8 || dtype == DType::u16 ? value : value - 50;
}

struct Case {
  PointwisePlan plan;
  int64_t length, rows;
};

Case random_case(std::mt19937& random, Isa isa) {
  const DType types[] = {DType::f32, DType::f32, DType::f32, DType::f16, DType::bf16, DType::u8,
                         DType::i8,  DType::u16, DType::i16, DType::i32, DType::i64,  DType::boolean};
  const DType outputs[] = {DType::f32, DType::f32, DType::i32, DType::u8,
                           DType::i8,  DType::u16, DType::i16, DType::boolean};
  Case c{.plan = {.isa = isa},
         .length = static_cast<int64_t>(random() % 90),
         .rows = 1 + static_cast<int64_t>(random() % 3)};
  Expression& e = c.plan.expression;
  const int inputs = 1 + static_cast<int>(random() % 4);
  int sum = -1;
  for (int k = 0; k < inputs; ++k) {
    e.inputs.push_back(types[random() % std::size(types)]);
    c.plan.access.push_back(static_cast<PointwiseAccess>(random() % 3));
    if (c.plan.access.back() == PointwiseAccess::repeated) c.length = (c.length + 15) / 16 * 16;
    const int x = e.add({.op = ExprOp::input, .a = k});
    const ExprOp ops[] = {ExprOp::add, ExprOp::sub, ExprOp::max, ExprOp::add};
    sum = k == 0 ? x : e.add({.op = ops[random() % 4], .a = sum, .b = x});
  }
  const int limit = e.add({.op = ExprOp::constant, .value = 20});
  e.add({.op = ExprOp::min, .a = sum, .b = limit});
  e.output = outputs[random() % std::size(outputs)];
  return c;
}

void run_case(const Case& c, std::mt19937& random) {
  const Expression& e = c.plan.expression;
  const int lanes = vector_lanes(c.plan.isa);
  std::vector<std::unique_ptr<GuardedBytes>> memory;
  std::vector<const void*> addresses;
  std::vector<int64_t> strides;
  std::vector<std::vector<int>> values;
  for (size_t k = 0; k < e.inputs.size(); ++k) {
    const auto bytes = static_cast<int64_t>(bits_of(e.inputs[k]) / 8);
    const int64_t width = c.plan.access[k] == PointwiseAccess::contiguous ? c.length
                          : c.plan.access[k] == PointwiseAccess::scalar   ? 1
                                                                          : lanes;
    memory.push_back(std::make_unique<GuardedBytes>(static_cast<size_t>(width * c.rows * bytes)));
    values.emplace_back();
    for (int64_t i = 0; i < width * c.rows; ++i) {
      values[k].push_back(random_value(random, e.inputs[k]));
      write_element(e.inputs[k], memory[k]->as<std::byte>() + i * bytes, values[k].back());
    }
    addresses.push_back(memory[k]->data());
    strides.push_back(width * bytes);
  }
  const auto out_bytes = static_cast<int64_t>(bits_of(e.output) / 8);
  const GuardedBytes out(static_cast<size_t>(c.length * c.rows * out_bytes));
  const PointwiseArgs args{addresses.data(), strides.data(), out.data(), c.length * out_bytes,
                           c.length,         c.rows,         nullptr};
  pointwise_kernel(c.plan)(&args);
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t i = 0; i < c.length; ++i) {
      float in[4] = {};
      for (size_t k = 0; k < e.inputs.size(); ++k) {
        const PointwiseAccess access = c.plan.access[k];
        const int64_t at = access == PointwiseAccess::contiguous ? row * c.length + i
                           : access == PointwiseAccess::scalar   ? row
                                                                 : row * lanes + i % lanes;
        in[k] = static_cast<float>(values[k][static_cast<size_t>(at)]);
      }
      ASSERT_EQ(read_element(e.output, out.as<std::byte>() + (row * c.length + i) * out_bytes), evaluate(e, in))
          << c.plan.key() << ", length " << c.length << ", row " << row << ", element " << i;
    }
  ASSERT_TRUE(out.is_untouched_outside()) << c.plan.key();
}

TEST(Pointwise, AgreesWithPlainEvaluationAndStaysWithinItsOperands) {
  for (const Isa isa : isas_here()) {
    std::mt19937 random(5);
    for (int round = 0; round < 400; ++round) {
      const Case c = random_case(random, isa);
      run_case(c, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Pointwise, RunsExpressionsWithMoreValuesThanRegisters) {
  constexpr int kInputs = 40;
  Expression e;
  for (int k = 0; k < kInputs; ++k) {
    e.inputs.push_back(DType::f32);
    e.add({.op = ExprOp::input, .a = k});
  }
  std::vector<int> squares;
  for (int k = 0; k < kInputs; ++k) squares.push_back(e.add({.op = ExprOp::mul, .a = k, .b = (k + 1) % kInputs}));
  int sum = squares[0];
  for (int k = 1; k < kInputs; ++k)
    sum = e.add({.op = ExprOp::max, .a = squares[static_cast<size_t>(kInputs - k)], .b = sum});
  std::vector<float> data(64, 2);
  std::vector<const void*> addresses(kInputs, data.data());
  const std::vector<int64_t> strides(kInputs, 0);
  std::vector<float> out(64, 0);
  for (const Isa isa : isas_here()) {
    const PointwisePlan plan{
        .isa = isa, .expression = e, .access = std::vector<PointwiseAccess>(kInputs, PointwiseAccess::contiguous)};
    const PointwiseArgs args{addresses.data(), strides.data(), out.data(), 0, 61, 1, nullptr};
    pointwise_kernel(plan)(&args);
    EXPECT_EQ(out[0], 4);
    EXPECT_EQ(out[60], 4);
    EXPECT_EQ(out[61], 0);
  }
}

TEST(Pointwise, RunsExpressionsWithMoreConstantsThanRegisters) {
  constexpr int kConstants = 50;
  Expression e{.inputs = {DType::f32}};
  int sum = e.add({.op = ExprOp::input, .a = 0});
  for (int k = 0; k < kConstants; ++k) {
    const int constant = e.add({.op = ExprOp::constant, .value = static_cast<float>(k % 45 + 1)});
    const ExprOp ops[] = {ExprOp::add, ExprOp::sub, ExprOp::max};
    sum = e.add({.op = ops[k % 3], .a = sum, .b = constant});
    // Constants in both places of a choice, in one, and in front.
    const int chosen = e.add({.op = ExprOp::less, .a = constant, .b = sum});
    sum = e.add({.op = ExprOp::select, .a = chosen, .b = sum, .c = constant});
  }
  std::vector<float> in(61), out(64, -1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) * 3 - 40;
  const void* address = in.data();
  const int64_t stride = 0;
  for (const Isa isa : isas_here()) {
    const PointwisePlan plan{.isa = isa, .expression = e, .access = {PointwiseAccess::contiguous}};
    const PointwiseArgs args{&address, &stride, out.data(), 0, static_cast<int64_t>(in.size()), 1, nullptr};
    pointwise_kernel(plan)(&args);
    for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i], evaluate(e, &in[i])) << in[i];
    EXPECT_EQ(out[in.size()], -1);
  }
}

TEST(Pointwise, ZeroesMaskedLanes) {
  for (const Isa isa : isas_here()) {
    Expression e{.inputs = {DType::f32}};
    e.add({.op = ExprOp::input, .a = 0});
    e.add({.op = ExprOp::exp, .a = 0});
    const PointwisePlan plan{.isa = isa, .expression = e, .access = {PointwiseAccess::contiguous}, .masks_lanes = true};
    const auto lanes = static_cast<size_t>(vector_lanes(isa));
    const std::vector<float> in(lanes * 5, 0);
    std::vector<float> out(lanes * 5, -1), mask(lanes, 0);
    for (size_t i = 0; i < 3; ++i) mask[i] = std::bit_cast<float>(~0u);
    const void* address = in.data();
    const int64_t stride = 0;
    const PointwiseArgs args{&address, &stride, out.data(), 0, static_cast<int64_t>(out.size()), 1, mask.data()};
    pointwise_kernel(plan)(&args);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % lanes < 3 ? 1 : 0);
  }
}

TEST(Pointwise, RefusesTypesWithoutCode) {
  Expression e{.inputs = {DType::f64}};
  e.add({.op = ExprOp::input, .a = 0});
  EXPECT_THROW(pointwise_kernel({.isa = Isa::avx2, .expression = e, .access = {PointwiseAccess::contiguous}}),
               JitError);
}

}  // namespace
}  // namespace lathe
