// lathe::Attention: the kernels in one pass over the keys against the reference, which the tests of the pass hold to
// the operators that it is made of.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/expression_attribute.h"
#include "lathe/error.h"
#include "src/base/half.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::bf16_isas_here;
using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

// x * factor + input 1 (+ input 2 ...)
Expression scaled_and_masked(float factor, size_t masks) {
  Expression e;
  e.inputs.assign(masks + 1, DType::f32);
  int x = e.add({.op = ExprOp::input, .a = 0});
  const int scale = e.add({.op = ExprOp::constant, .value = factor});
  x = e.add({.op = ExprOp::mul, .a = x, .b = scale});
  for (size_t i = 0; i < masks; ++i) {
    const int mask = e.add({.op = ExprOp::input, .a = static_cast<int>(i) + 1});
    x = e.add({.op = ExprOp::add, .a = x, .b = mask});
  }
  return e;
}

struct AttentionCase {
  int64_t batch = 2, heads = 3, rows = 20, keys = 33, size = 8, value_size = 12;
  enum class Form { stacked, heads_apart, joined, parts_of_one } form = Form::stacked;
  std::vector<Dims> masks = {};
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
    out << "batch " << c.batch << " heads " << c.heads << " rows " << c.rows << " keys " << c.keys << " size " << c.size
        << " value_size " << c.value_size << " form " << static_cast<int>(c.form) << " threads " << c.threads;
    for (const Dims& mask : c.masks) out << " mask " << to_string(mask);
    return out;
  }
};

using Ints = std::vector<int64_t>;

void add_inputs(const AttentionCase& c, OneNode& one, Attributes& attributes, std::mt19937& random) {
  const int64_t b = c.batch, h = c.heads;
  switch (c.form) {
    case AttentionCase::Form::stacked:
      one.inputs = {random_tensor({b, h, c.rows, c.size}, random), random_tensor({b, h, c.size, c.keys}, random),
                    random_tensor({b, h, c.keys, c.value_size}, random)};
      return;
    case AttentionCase::Form::heads_apart:
      one.inputs = {random_tensor({b, c.rows, h, c.size}, random), random_tensor({b, c.keys, h, c.size}, random),
                    random_tensor({b, c.keys, h, c.value_size}, random)};
      break;
    case AttentionCase::Form::joined:
      one.inputs = {random_tensor({b, c.rows, h * c.size}, random), random_tensor({b, c.keys, h * c.size}, random),
                    random_tensor({b, c.keys, h * c.value_size}, random)};
      attributes.set("heads", Ints{h, h, h, h});
      break;
    case AttentionCase::Form::parts_of_one: {
      // Queries of the same length as the keys.
      const int64_t q = h * c.size, v = h * c.value_size;
      const Tensor all = random_tensor({b, c.keys, 2 * q + v}, random);
      one.inputs = {all, all, all};
      attributes.set("heads", Ints{h, h, h, h});
      attributes.set("parts", Ints{v, q, v + q, q, 0, v});
      break;
    }
  }
  attributes.set("perm_q", Ints{0, 2, 1, 3});
  attributes.set("perm_k", Ints{0, 2, 3, 1});
  attributes.set("perm_v", Ints{0, 2, 1, 3});
  attributes.set("perm_y", Ints{0, 2, 1, 3});
}

// Shares sum to 1 and values lie in [-1, 1]; scores of a few units are rounded before their exponentials.
void expect_reference(const OneNode& one, Isa isa, int threads, double tolerance) {
  SCOPED_TRACE(name_of(isa));
  const Tensor expected = one.expected();
  const std::optional<Tensor> got = one.run(isa, threads);
  ASSERT_TRUE(got) << "the reference ran";
  ASSERT_EQ(got->dims(), expected.dims());
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], tolerance) << "element " << i;
  }
}

class AttentionViews : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionViews, MatchesItsReferenceOnEachIsa) {
  const AttentionCase& c = GetParam();
  std::mt19937 random(11);
  OneNode one;
  one.domain = "lathe";
  Attributes attributes;
  add_inputs(c, one, attributes, random);
  for (const Dims& mask : c.masks) one.inputs.push_back(random_tensor(mask, random, -3, 3));
  one.is_constant.assign(one.inputs.size(), false);
  set_expression(attributes, "scores", scaled_and_masked(1.5f, c.masks.size()));
  one.make("Attention", 1, attributes, std::vector<int>(one.inputs.size(), 0), 0);
  for (const Isa isa : isas_here()) expect_reference(one, isa, c.threads, 4e-6);
}

struct SumCase {
  int64_t rows, key_rows, run;
  Dims first_batch, second_batch;
  size_t number;  // of the input that is a sum, of three
  friend std::ostream& operator<<(std::ostream& out, const SumCase& c) {
    return out << c.rows << " rows, keys " << c.key_rows << "x" << c.run << " number " << c.number;
  }
};

class AttentionSums : public ::testing::TestWithParam<SumCase> {};

// Runs that blocks of keys and vectors cut, or that are shorter than a vector; biases that heads share.
TEST_P(AttentionSums, MatchTheirReferenceOnEachIsa) {
  const SumCase& c = GetParam();
  std::mt19937 random(12);
  OneNode one;
  one.domain = "lathe";
  Attributes attributes;
  const int64_t keys = c.key_rows * c.run;
  add_inputs({.rows = c.rows, .keys = keys}, one, attributes, random);
  const auto biases = [&](Dims batch, int64_t elements) {
    batch.insert(batch.end(), {c.rows, elements});
    return random_tensor(batch, random, -3, 3);
  };
  for (size_t i = 0; i < 3; ++i) {
    one.inputs.push_back(i == c.number ? biases(c.first_batch, c.key_rows) : biases({3}, keys));
  }
  one.inputs.push_back(biases(c.second_batch, c.run));
  one.is_constant.assign(one.inputs.size(), false);
  set_expression(attributes, "scores", scaled_and_masked(0.5f, 3));
  attributes.set("sum_input", static_cast<int64_t>(c.number));
  attributes.set("sum_run", c.run);
  one.make("Attention", 1, attributes, std::vector<int>(one.inputs.size(), 0), 0);
  for (const Isa isa : isas_here()) {
    for (const int threads : {1, 3}) expect_reference(one, isa, threads, 8e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, AttentionSums,
                         ::testing::Values(SumCase{20, 14, 14, {2, 3}, {2, 3}, 0}, SumCase{49, 7, 5, {3}, {2, 1}, 1},
                                           SumCase{5, 1, 33, {2, 3}, {}, 2}, SumCase{33, 40, 1, {1, 3}, {2, 3}, 0},
                                           SumCase{30, 3, 700, {2, 3}, {2, 3}, 2}, SumCase{17, 37, 37, {}, {3}, 1},
                                           SumCase{13, 24, 64, {2, 3}, {2, 3}, 0}));

TEST(AttentionSums, RefuseRunsThatDoNotFitTheKeys) {
  std::mt19937 random(13);
  OneNode one;
  one.domain = "lathe";
  Attributes attributes;
  add_inputs({.keys = 33}, one, attributes, random);
  one.inputs.push_back(random_tensor({20, 3}, random));
  one.inputs.push_back(random_tensor({20, 10}, random));
  one.is_constant.assign(one.inputs.size(), false);
  set_expression(attributes, "scores", scaled_and_masked(1.5f, 1));
  attributes.set("sum_input", int64_t{0});
  attributes.set("sum_run", int64_t{10});
  one.make("Attention", 1, attributes, std::vector<int>(one.inputs.size(), 0), 0);
  EXPECT_THROW(one.expected(), Error);
}

Tensor as_16_bits(const Tensor& tensor, DType dtype) {
  Tensor narrow(dtype, tensor.dims());
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const float value = tensor.data<float>()[i];
    static_cast<uint16_t*>(narrow.mutable_raw())[i] =
        dtype == DType::bf16 ? float_to_bfloat(value) : float_to_half(value);
  }
  return narrow;
}

TEST_P(AttentionViews, MatchesItsReferenceIn16BitFloats) {
  const AttentionCase& c = GetParam();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::mt19937 random(14);
    OneNode one;
    one.domain = "lathe";
    Attributes attributes;
    add_inputs(c, one, attributes, random);
    for (const Dims& mask : c.masks) one.inputs.push_back(random_tensor(mask, random, -3, 3));
    // One tensor in three places stays one.
    for (Tensor& input : one.inputs) input = as_16_bits(input, dtype);
    one.is_constant.assign(one.inputs.size(), false);
    set_expression(attributes, "scores", scaled_and_masked(1.5f, c.masks.size()));
    one.make("Attention", 1, attributes, std::vector<int>(one.inputs.size(), 0), 0);
    const Tensor expected = one.expected();
    for (const Isa isa : bf16_isas_here()) {
      SCOPED_TRACE(std::string(name_of(isa)) + (dtype == DType::bf16 ? " bf16" : " f16"));
      const std::optional<Tensor> got = one.run(isa, c.threads);
      ASSERT_TRUE(got) << "the reference ran";
      ASSERT_EQ(got->dims(), expected.dims());
      for (int64_t i = 0; i < expected.size(); ++i) {
        const auto real = [&](const Tensor& tensor) {
          const uint16_t bits = static_cast<const uint16_t*>(tensor.raw())[i];
          return dtype == DType::bf16 ? bfloat_to_float(bits) : half_to_float(bits);
        };
        // Values lie in [-1, 1], their shares sum to 1: a share is rounded to 8 bits at most once, and so is the
        // result.
        const bool is_exact_before = dtype == DType::f16 || isa != Isa::avx512_bf16;
        const float unit = dtype == DType::bf16 ? 0x1p-7f : 0x1p-10f;
        const float bound = std::abs(real(expected)) * unit + (is_exact_before ? 1e-5f : 0x1p-9f);
        ASSERT_NEAR(real(*got), real(expected), bound) << "element " << i;
      }
    }
  }
}

using Form = AttentionCase::Form;
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionViews,
                         ::testing::Values(AttentionCase{}, AttentionCase{1, 1, 1, 1, 1, 1},
                                           AttentionCase{1, 2, 1, 700, 16, 16}, AttentionCase{1, 2, 9, 21, 7, 5},
                                           AttentionCase{1, 2, 50, 128, 32, 32, Form::heads_apart},
                                           AttentionCase{2, 2, 31, 197, 64, 64, Form::joined},
                                           AttentionCase{1, 3, 45, 45, 16, 24, Form::parts_of_one},
                                           AttentionCase{1, 2, 17, 513, 8, 40, Form::joined},
                                           AttentionCase{1, 2, 40, 1600, 8, 33, Form::heads_apart},
                                           AttentionCase{2, 3, 1, 389, 24, 40, Form::joined},
                                           AttentionCase{1, 5, 3, 700, 64, 20, Form::heads_apart, {{3, 700}}, 2},
                                           AttentionCase{2, 1, 2, 1025, 16, 16, Form::parts_of_one},
                                           AttentionCase{2, 4, 128, 128, 32, 32, Form::joined, {{2, 1, 1, 128}}, 2},
                                           AttentionCase{1, 1, 200, 300, 16, 16, Form::stacked, {}, 3}));

INSTANTIATE_TEST_SUITE_P(
    Masks, AttentionViews,
    ::testing::Values(AttentionCase{.masks = {{33}}}, AttentionCase{.masks = {{20, 33}}},
                      AttentionCase{.masks = {{2, 1, 1, 33}, {3, 1, 33}}}, AttentionCase{.masks = {{20, 1}}},
                      AttentionCase{.masks = {{}, {2, 3, 20, 33}}},
                      AttentionCase{.rows = 30, .keys = 1100, .form = Form::heads_apart, .masks = {{30, 1100}}}));

// Rows of which some, all or the first thousand keys are masked by -inf.
void expect_exclusion(bool zeroes_empty) {
  constexpr int64_t kRows = 5, kKeys = 1300;
  std::mt19937 random(12);
  OneNode one;
  one.domain = "lathe";
  one.inputs = {random_tensor({1, kRows, 4}, random), random_tensor({1, 4, kKeys}, random),
                random_tensor({1, kKeys, 6}, random), Tensor(DType::f32, {kRows, kKeys})};
  float* mask = one.inputs[3].mutable_data<float>();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t key = 0; key < kKeys; ++key) {
      const bool is_masked = row == 0   ? key % 3 == 0
                             : row == 1 ? true
                             : row == 2 ? key < 1000
                             : row == 3 ? key >= 7
                                        : false;
      mask[row * kKeys + key] = is_masked ? -std::numeric_limits<float>::infinity() : 0;
    }
  }
  one.is_constant.assign(4, false);
  Attributes attributes;
  set_expression(attributes, "scores", scaled_and_masked(1, 1));
  if (zeroes_empty) attributes.set("zeroes_empty", int64_t{1});
  one.make("Attention", 1, attributes, {0, 0, 0, 0}, 0);
  const Tensor expected = one.expected();
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(name_of(isa));
    const std::optional<Tensor> got = one.run(isa, 2);
    ASSERT_TRUE(got);
    for (int64_t i = 0; i < expected.size(); ++i) {
      const float want = expected.data<float>()[i], have = got->data<float>()[i];
      if (i / 6 == 1 && !zeroes_empty) {
        EXPECT_TRUE(std::isnan(want) && std::isnan(have)) << "a row without keys, element " << i;
      } else {
        EXPECT_NEAR(have, want, 4e-6) << "element " << i;
      }
    }
  }
}

TEST(AttentionViews, ExcludesWhatIsMaskedByInfinity) { expect_exclusion(false); }

TEST(AttentionViews, GivesZerosForRowsWithoutKeysWhereAsked) { expect_exclusion(true); }

TEST(AttentionViews, LeavesOrdersThatBreakRowsToTheReference) {
  std::mt19937 random(13);
  OneNode one;
  one.domain = "lathe";
  one.inputs = {random_tensor({4, 5}, random), random_tensor({4, 6}, random), random_tensor({6, 3}, random)};
  one.is_constant.assign(3, false);
  Attributes attributes;
  attributes.set("perm_q", Ints{1, 0});
  one.make("Attention", 1, attributes, {0, 0, 0}, 0);
  EXPECT_FALSE(one.run(Isa::avx2, 1));
}

TEST(ExpressionAttribute, ComesBackAsItWas) {
  Attributes attributes;
  const Expression expression = scaled_and_masked(0.25f, 2);
  set_expression(attributes, "scores", expression);
  EXPECT_EQ(get_expression(attributes, "scores"), expression);
  EXPECT_FALSE(get_expression(attributes, "other"));
}

TEST(ExpressionAttribute, RefusesWhatIsNoExpression) {
  const auto parse = [](Ints nodes, std::vector<float> constants) {
    Attributes attributes;
    attributes.set("scores", std::move(nodes));
    attributes.set("scores_constants", std::move(constants));
    return get_expression(attributes, "scores");
  };
  EXPECT_THROW(parse({}, {}), Error);
  EXPECT_THROW(parse({0, 0, -1, -1}, {}), Error);
  EXPECT_THROW(parse({1000, 0, -1, -1}, {0}), Error);
  EXPECT_THROW(parse({0, -5, -1, -1}, {0}), Error);
  const auto add = static_cast<int64_t>(ExprOp::add);
  EXPECT_THROW(parse({0, 0, -1, -1, add, 0, 1, -1}, {0, 0}), Error);
}

}  // namespace
}  // namespace lathe
