// Einsum against plain loops over all of its axes.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

// The equation without an ellipsis, one letter an axis.
struct Plain {
  std::vector<std::string> terms;
  std::string result;
};

Plain plain_of(const std::string& equation) {
  Plain plain;
  const size_t arrow = equation.find("->");
  std::string term;
  for (const char c : equation.substr(0, arrow) + ",") {
    if (c != ',') {
      term += c;
    } else {
      plain.terms.push_back(std::exchange(term, ""));
    }
  }
  plain.result = equation.substr(arrow + 2);
  return plain;
}

int64_t offset_of(const std::string& term, const std::map<char, int64_t>& extents,
                  const std::map<char, int64_t>& index) {
  int64_t offset = 0;
  for (const char axis : term) offset = offset * extents.at(axis) + index.at(axis);
  return offset;
}

// Every element of the result, and the sum of the absolute values of its terms.
struct Expected {
  std::vector<double> values, sizes;
};

Expected expected_of(const Plain& plain, const std::map<char, int64_t>& extents, const std::vector<Tensor>& inputs) {
  Expected expected;
  int64_t elements = 1;
  for (const char axis : plain.result) elements *= extents.at(axis);
  expected.values.resize(static_cast<size_t>(elements));
  expected.sizes = expected.values;
  std::map<char, int64_t> index;
  for (const auto& [axis, extent] : extents) index[axis] = 0;
  for (bool is_done = false; !is_done;) {
    double product = 1;
    for (size_t i = 0; i < inputs.size(); ++i) {
      product *= inputs[i].data<float>()[offset_of(plain.terms[i], extents, index)];
    }
    const auto at = static_cast<size_t>(offset_of(plain.result, extents, index));
    expected.values[at] += product;
    expected.sizes[at] += std::abs(product);
    is_done = true;
    for (auto& [axis, i] : index) {
      if (++i < extents.at(axis)) {
        is_done = false;
        break;
      }
      i = 0;
    }
  }
  return expected;
}

void expect_values(const Tensor& result, const Expected& expected, const std::string& what) {
  ASSERT_EQ(result.size(), static_cast<int64_t>(expected.values.size())) << what;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    // A rounding for each term and one for each addition, at most.
    const double bound = expected.sizes[i] * 1e-5 + 1e-30;
    ASSERT_NEAR(result.data<float>()[i], expected.values[i], bound) << what << ", element " << i;
  }
}

struct Case {
  std::string equation;
  bool has_constant = false;
  bool is_lowered = true;
};

class EinsumEquation : public ::testing::TestWithParam<Case> {};
void PrintTo(const Case& tested, std::ostream* out) { *out << tested.equation; }

TEST_P(EinsumEquation, EqualsPlainLoops) {
  const auto& [equation, has_constant, is_lowered] = GetParam();
  std::mt19937 random(17);
  for (int round = 0; round < 3; ++round) {
    const Plain plain = plain_of(equation);
    std::map<char, int64_t> extents;
    for (const std::string& term : plain.terms) {
      for (const char axis : term) extents.emplace(axis, 1 + static_cast<int64_t>(random() % 7));
    }
    OpTester tester("Einsum", 12);
    tester.with("equation", equation);
    std::vector<Tensor> inputs;
    for (const std::string& term : plain.terms) {
      Dims dims;
      for (const char axis : term) dims.push_back(extents.at(axis));
      inputs.push_back(random_tensor(dims, random));
      if (has_constant && inputs.size() == 2) {
        tester.constant(inputs.back());
      } else {
        tester.input(inputs.back());
      }
    }
    const Expected expected = expected_of(plain, extents, inputs);
    expect_values(tester.result(), expected, "reference");
    for (const int threads : {1, 3}) {
      const auto lowered = tester.lowered(usable_isa(), threads);
      ASSERT_EQ(lowered.has_value(), is_lowered);
      if (lowered) expect_values((*lowered)[0], expected, "lowered, round " + std::to_string(round));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Equations, EinsumEquation,
    ::testing::Values(Case{"ij,jk->ik"}, Case{"ij,kj->ik"}, Case{"ji,jk->ik"}, Case{"ij,jk->ki"}, Case{"bij,bjk->bik"},
                      Case{"bhid,bhjd->bhij"}, Case{"nlhd,nmhd->nhlm"}, Case{"nhlm,nmhd->nlhd"}, Case{"abc,cd->abd"},
                      Case{"abc,cd->abd", true}, Case{"abcd,cde->abe", true}, Case{"abcd,dce->abe"},
                      Case{"abcd,dce->abe", true}, Case{"abc,cde->abde", true}, Case{"abc,dec->adbe"}, Case{"i,j->ij"},
                      Case{"i,i->"}, Case{"i,j->ji"}, Case{"bhi,bi->bh"}, Case{"bi,hi->bh"}, Case{"ijk->kij"},
                      Case{"ij,ij->ij"}, Case{"ijk,jil->kl"}, Case{"aij,abkj->bkia", false, false}, Case{"ii->i"},
                      Case{"ii,i->i"}, Case{"iji->ji"}, Case{"ij->i", false, false}, Case{"ij->", false, false},
                      Case{"ij,jk,kl->il", false, false}, Case{"ijk,jk->j", false, false}));

TEST(Einsum, SumsWhatItsImpliedResultLacks) {
  const Tensor a = tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(list<float>(OpTester("Einsum", 12).with("equation", "ba").input(a).result()),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  const Tensor square = tensor<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(list<float>(OpTester("Einsum", 12).with("equation", "i i").input(square).result()),
            (std::vector<float>{5}));
}

TEST(Einsum, AlignsEllipsesAtTheirLastAxes) {
  std::mt19937 random(5);
  const Tensor a = random_tensor({4, 1, 2, 3}, random), b = random_tensor({5, 3, 6}, random);
  OpTester wide("Einsum", 12), plain("MatMul", 13);
  wide.with("equation", " ...ij , ...jk -> ...ik ").input(a).input(b);
  plain.input(a).input(b);
  const Tensor result = wide.result(), expected = plain.result();
  ASSERT_EQ(result.dims(), expected.dims());
  for (int64_t i = 0; i < result.size(); ++i) EXPECT_NEAR(result.data<float>()[i], expected.data<float>()[i], 1e-6);
  const auto lowered = wide.lowered(usable_isa(), 1);
  ASSERT_TRUE(lowered.has_value());
  for (int64_t i = 0; i < result.size(); ++i) {
    EXPECT_NEAR((*lowered)[0].data<float>()[i], expected.data<float>()[i], 1e-6);
  }
}

// Large enough for fewer products of blocks, where these pay; the constant as it is, and turned.
TEST(Einsum, MultipliesManyRowsByConstants) {
  std::mt19937 random(9);
  const Tensor rows = random_tensor({6, 7, 192}, random);
  const std::pair<const char*, Dims> cases[] = {{"abc,cd->abd", {192, 192}}, {"abc,dc->abd", {192, 192}}};
  for (const auto& [equation, dims] : cases) {
    const Tensor weights = random_tensor(dims, random);
    OpTester tester("Einsum", 12);
    tester.with("equation", equation).input(rows).constant(weights);
    const Expected expected =
        expected_of(plain_of(equation), {{'a', 6}, {'b', 7}, {'c', 192}, {'d', 192}}, {rows, weights});
    for (const Isa isa : {Isa::avx2, usable_isa()}) {
      for (const int threads : {1, 2}) {
        const auto lowered = tester.lowered(isa, threads);
        ASSERT_TRUE(lowered.has_value());
        expect_values((*lowered)[0], expected, equation);
      }
    }
  }
}

TEST(Einsum, WrapsIntegersAround) {
  const Tensor a = tensor<int32_t>({2}, {65536, 3}), b = tensor<int32_t>({2}, {65536, 5});
  EXPECT_EQ(list<int32_t>(OpTester("Einsum", 12).with("equation", "i,i->").input(a).input(b).result()),
            (std::vector<int32_t>{15}));
}

TEST(Einsum, SumsOverNothingToZero) {
  const Tensor a(DType::f32, {2, 0}), b(DType::f32, {0, 3});
  const Tensor result = OpTester("Einsum", 12).with("equation", "ij,jk->ik").input(a).input(b).result();
  EXPECT_EQ(list<float>(result), std::vector<float>(6, 0));
}

TEST(Einsum, RefusesAnEquationThatDoesNotFit) {
  const Tensor a(DType::f32, {2, 3}), b(DType::f32, {3, 4});
  for (const char* equation : {"ij,jk->iz", "ij,jk->iz->", "ij", "ij,j->i", "ij,jk->ii", "i.j,jk->ik", "ij,ik->jk", "",
                               "ij,jk,k->i", "i1,1k->ik", "...ijk,jk->i"}) {
    OpTester tester("Einsum", 12);
    EXPECT_THROW(tester.with("equation", equation).input(a).input(b).result(), Error) << equation;
  }
}

}  // namespace
}  // namespace lathe::testing
