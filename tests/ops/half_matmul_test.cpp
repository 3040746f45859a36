#include <gtest/gtest.h>

#include <cmath>

#include "src/base/half.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::bf16_isas_here;
using testing::OneNode;

float value_at(const Tensor& tensor, int64_t i) {
  const uint16_t bits = static_cast<const uint16_t*>(tensor.raw())[i];
  return tensor.dtype() == DType::bf16 ? bfloat_to_float(bits) : half_to_float(bits);
}

Tensor random_halves(DType dtype, const Dims& dims, std::mt19937& random) {
  Tensor tensor(dtype, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const float value = std::uniform_real_distribution<float>(-1, 1)(random);
    static_cast<uint16_t*>(tensor.mutable_raw())[i] =
        dtype == DType::bf16 ? float_to_bfloat(value) : float_to_half(value);
  }
  return tensor;
}

// Both are rounded once: one unit apart at most, and what float32 sums of k products of numbers in [-1, 1] lose.
void expect_near(const Tensor& got, const Tensor& expected, int64_t k) {
  ASSERT_EQ(got.dtype(), expected.dtype());
  ASSERT_EQ(got.dims(), expected.dims());
  const double unit = got.dtype() == DType::bf16 ? 0x1p-7 : 0x1p-10;
  const double summed = 1.2e-7 * static_cast<double>(k + 8) * std::sqrt(static_cast<double>(k + 1)) * 4;
  for (int64_t i = 0; i < got.size(); ++i) {
    const double want = static_cast<double>(value_at(expected, i));
    ASSERT_NEAR(value_at(got, i), want, std::abs(want) * unit + summed) << "element " << i;
  }
}

void expect_reference(const OneNode& one, int threads, int64_t k) {
  for (const Isa isa : bf16_isas_here()) {
    SCOPED_TRACE(name_of(isa));
    const std::optional<Tensor> got = one.run(isa, threads);
    ASSERT_TRUE(got) << "the reference ran";
    expect_near(*got, one.expected(), k);
  }
}

struct HalfCase {
  Dims a, b;
  bool constant_b = false;
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const HalfCase& c) {
    return out << to_string(c.a) << " * " << to_string(c.b) << (c.constant_b ? " constant" : "") << " threads "
               << c.threads;
  }
};

class HalfMatMul : public ::testing::TestWithParam<std::tuple<DType, HalfCase>> {};

TEST_P(HalfMatMul, MatchesItsReferenceOnEachIsa) {
  const auto& [dtype, c] = GetParam();
  std::mt19937 random(9);
  OneNode one;
  one.inputs = {random_halves(dtype, c.a, random), random_halves(dtype, c.b, random)};
  one.is_constant = {false, c.constant_b};
  one.make("MatMul", 13, {}, {0, 0}, 0);
  expect_reference(one, c.threads, c.a.back());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HalfMatMul,
    ::testing::Combine(
        ::testing::Values(DType::bf16, DType::f16),
        ::testing::Values(HalfCase{{128, 64}, {64, 100}, true}, HalfCase{{1, 34}, {34, 250}, true},
                          HalfCase{{3, 34}, {34, 250}, true, 2}, HalfCase{{5, 33}, {33, 250}, true},
                          HalfCase{{49, 70}, {70, 31}}, HalfCase{{10}, {10}, true}, HalfCase{{10}, {10, 20}, true},
                          HalfCase{{3, 4, 10}, {10}, true}, HalfCase{{2, 3, 17, 8}, {2, 3, 8, 20}, false, 2},
                          HalfCase{{2, 1, 17, 8}, {3, 8, 20}, true}, HalfCase{{2, 3, 17, 8}, {8, 20}, true, 3},
                          HalfCase{{17, 8}, {3, 8, 20}}, HalfCase{{0, 4}, {4, 7}, true}, HalfCase{{3, 4}, {4, 0}},
                          HalfCase{{101, 1100}, {1100, 400}, true, 3}, HalfCase{{64, 128}, {128, 1000}, true, 2})));

struct HalfGemmCase {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  float alpha, beta;
  Dims bias;  // {-1}: none
  bool constant_b;

  friend std::ostream& operator<<(std::ostream& out, const HalfGemmCase& c) {
    return out << c.m << "x" << c.n << "x" << c.k << (c.transpose_a ? " transA" : "")
               << (c.transpose_b ? " transB" : "") << " alpha " << c.alpha << " beta " << c.beta << " bias "
               << to_string(c.bias) << (c.constant_b ? " constant" : "");
  }
};

class HalfGemm : public ::testing::TestWithParam<std::tuple<DType, HalfGemmCase>> {};

TEST_P(HalfGemm, MatchesItsReferenceOnEachIsa) {
  const auto& [dtype, c] = GetParam();
  std::mt19937 random(10);
  OneNode one;
  one.inputs = {random_halves(dtype, c.transpose_a ? Dims{c.k, c.m} : Dims{c.m, c.k}, random),
                random_halves(dtype, c.transpose_b ? Dims{c.n, c.k} : Dims{c.k, c.n}, random)};
  one.is_constant = {false, c.constant_b};
  if (c.bias != Dims{-1}) {
    one.inputs.push_back(random_halves(dtype, c.bias, random));
    one.is_constant.push_back(c.constant_b);
  }
  Attributes attributes;
  attributes.set("alpha", c.alpha);
  attributes.set("beta", c.beta);
  attributes.set("transA", int64_t{c.transpose_a});
  attributes.set("transB", int64_t{c.transpose_b});
  one.make("Gemm", 13, attributes, std::vector<int>(one.inputs.size(), 0), 0);
  expect_reference(one, 2, c.k);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, HalfGemm,
    ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                       ::testing::Values(HalfGemmCase{7, 40, 34, false, false, 1, 1, {40}, true},
                                         HalfGemmCase{7, 40, 34, false, true, 0.5F, 2, {1, 40}, true},
                                         HalfGemmCase{50, 41, 34, false, true, 0.5F, 0.25F, {}, true},
                                         HalfGemmCase{50, 41, 34, false, true, 2, 1, {-1}, true},
                                         HalfGemmCase{50, 41, 34, false, true, 1, 0, {41}, true},
                                         HalfGemmCase{7, 40, 33, true, false, 0.5F, 2, {7, 40}, true},
                                         HalfGemmCase{17, 41, 34, true, true, 0.5F, 2, {17, 1}, false},
                                         HalfGemmCase{1, 1000, 512, false, true, 1, 1, {1000}, true})));

TEST(HalfProducts, ConstantBfloat16WeightsRunOnTheirOwnInstructions) {
  if (usable_isa() != Isa::avx512_bf16) GTEST_SKIP() << "the CPU multiplies no bfloat16";
  std::mt19937 random(12);
  OneNode one;
  one.inputs = {random_halves(DType::bf16, {20, 64}, random), random_halves(DType::bf16, {64, 48}, random)};
  one.is_constant = {false, true};
  one.make("MatMul", 13, {}, {0, 0}, 0);
  testing::FallbackPlans plans;
  PackedWeights packed;
  const LoweredGraph lowered =
      lower_graph(one.graph, {OpRegistry::builtin(), {Isa::avx512_bf16, 1}, packed, plans, nullptr});
  ASSERT_EQ(lowered.steps.size(), 1u);
  EXPECT_EQ(lowered.steps[0].kernel, "gemm 7x3 bf16");
}

}  // namespace
}  // namespace lathe
