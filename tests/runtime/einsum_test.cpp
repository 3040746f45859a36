// Einsums of any number of operands, by the passes' products against the plain reference, which runs at level 0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tests/model_builder.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

struct RandomEinsum {
  std::string equation;
  std::vector<Dims> operands;
};

// Operands of some of five letters each; the result has some of those that occur.
RandomEinsum random_einsum(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::map<char, int64_t> extents;
  for (const char letter : std::string("abcde")) extents[letter] = pick(1, 6);
  RandomEinsum einsum;
  std::string seen;
  const int operands = pick(1, 4);
  for (int i = 0; i < operands; ++i) {
    std::string letters = "abcde";
    std::shuffle(letters.begin(), letters.end(), random);
    letters.resize(static_cast<size_t>(pick(1, 4)));
    Dims dims;
    for (const char letter : letters) dims.push_back(extents[letter]);
    einsum.operands.push_back(dims);
    einsum.equation += (i == 0 ? "" : ",") + letters;
    for (const char letter : letters) {
      if (seen.find(letter) == std::string::npos) seen += letter;
    }
  }
  std::shuffle(seen.begin(), seen.end(), random);
  einsum.equation += "->" + seen.substr(0, static_cast<size_t>(pick(0, static_cast<int>(seen.size()))));
  return einsum;
}

TEST(Einsum, IsTheSameInPartsAndByItsReference) {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    const RandomEinsum einsum = random_einsum(random);
    SCOPED_TRACE(einsum.equation);
    ModelBuilder model;
    std::vector<Tensor> inputs;
    std::vector<std::string> names;
    for (size_t i = 0; i < einsum.operands.size(); ++i) {
      const Dims& dims = einsum.operands[i];
      const std::vector<testing::Extent> extents(dims.begin(), dims.end());
      names.push_back(model.input("x" + std::to_string(i), extents, DType::f32));
      inputs.push_back(random_input(dims, static_cast<unsigned>(round * 8) + static_cast<unsigned>(i)));
    }
    model.output(model.node("Einsum", names).with("equation", einsum.equation.c_str()).result());
    const std::string bytes = model.bytes();
    const auto run = [&](int level) {
      return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 2, .optimization_level = level})
          .run(inputs)[0];
    };
    const Tensor expected = run(0), got = run(99);
    ASSERT_EQ(got.dims(), expected.dims());
    for (int64_t i = 0; i < got.size(); ++i) {
      const float value = expected.data<float>()[i];
      ASSERT_NEAR(got.data<float>()[i], value, 1e-4F * (1 + std::abs(value))) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace lathe
