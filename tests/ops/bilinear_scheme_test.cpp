#include "ops/gemm/bilinear_scheme.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lathe {
namespace {

class BilinearSchemeTest : public ::testing::TestWithParam<const BilinearScheme*> {};

using Coefficients = std::array<int, 54>;  // of each block of A times each block of B

Coefficients product_of(const BilinearScheme::Product& product) {
  Coefficients value = {};
  for (size_t i = 0; i < value.size(); ++i) value[i] = product.a[i / 9] * product.b[i % 9];
  return value;
}

// R. Brent's equations: the coefficient of each a * b in each block of C.
TEST_P(BilinearSchemeTest, IsTheProductOfMatrices) {
  const BilinearScheme& scheme = *GetParam();
  std::array<Coefficients, 6> held = {};
  for (const BilinearScheme::Product& product : scheme.products) {
    Coefficients value = product_of(product);
    const auto takes = static_cast<size_t>(product.takes);
    for (size_t i = 0; product.takes >= 0 && i < value.size(); ++i) value[i] += held[takes][i];
    for (size_t c = 0; c < held.size(); ++c) {
      for (size_t i = 0; i < value.size(); ++i)
        held[c][i] =
            product.takes >= 0 && c == takes && product.c[c] != 0 ? value[i] : held[c][i] + product.c[c] * value[i];
    }
  }
  for (int c = 0; c < scheme.c_blocks(); ++c) {
    for (int a = 0; a < scheme.a_blocks(); ++a) {
      for (int b = 0; b < scheme.b_blocks(); ++b) {
        const bool meets = a % scheme.inner == b / scheme.columns && a / scheme.inner == c / scheme.columns &&
                           b % scheme.columns == c % scheme.columns;
        EXPECT_EQ(held[static_cast<size_t>(c)][static_cast<size_t>(a * 9 + b)], meets ? 1 : 0)
            << "blocks " << a << " of A, " << b << " of B, " << c << " of C";
      }
    }
  }
}

TEST_P(BilinearSchemeTest, HasOnlyTermsThatItsKernelsCanTake) {
  const BilinearScheme& scheme = *GetParam();
  std::array<bool, 6> is_set = {};
  for (const BilinearScheme::Product& product : scheme.products) {
    const auto terms = [](const auto& signs) { return signs.size() - std::count(signs.begin(), signs.end(), 0); };
    EXPECT_LE(terms(product.c) + (product.takes >= 0 ? 1 : 0), 4);
    EXPECT_TRUE(scheme.packs_sums || terms(product.b) <= 2);
    EXPECT_NE(std::find(product.b.begin(), product.b.end(), 1), product.b.end());
    for (size_t c = 0; c < product.c.size(); ++c) {
      EXPECT_TRUE(product.c[c] >= 0 || is_set[c]) << "subtracted from block " << c << " before that is set";
      is_set[c] = is_set[c] || product.c[c] != 0;
    }
  }
}

// A block gets its epilogue with its last product: nothing is taken from it afterwards.
TEST_P(BilinearSchemeTest, TakesBlocksOnlyBeforeTheyAreComplete) {
  const BilinearScheme& scheme = *GetParam();
  for (size_t i = 0; i < scheme.products.size(); ++i) {
    if (scheme.products[i].takes < 0) continue;
    const auto taken = static_cast<size_t>(scheme.products[i].takes);
    EXPECT_TRUE(std::any_of(scheme.products.begin() + static_cast<long>(i), scheme.products.end(),
                            [&](const BilinearScheme::Product& later) { return later.c[taken] != 0; }))
        << "product " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, BilinearSchemeTest, ::testing::Values(&kStrassen222, &kHopcroftKerr233),
                         [](const auto& test) { return "S" + std::string(test.param->name); });

}  // namespace
}  // namespace lathe
