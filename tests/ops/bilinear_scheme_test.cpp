#include "ops/bilinear_scheme.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lathe {
namespace {

class BilinearSchemeTest : public ::testing::TestWithParam<const BilinearScheme*> {};

// R. Brent's equations: the coefficient of each a * b in each block of C.
TEST_P(BilinearSchemeTest, IsTheProductOfMatrices) {
  const BilinearScheme& scheme = *GetParam();
  for (int a = 0; a < scheme.a_blocks(); ++a) {
    for (int b = 0; b < scheme.b_blocks(); ++b) {
      for (int c = 0; c < scheme.c_blocks(); ++c) {
        int sum = 0;
        for (const BilinearScheme::Product& product : scheme.products) {
          sum +=
              product.a[static_cast<size_t>(a)] * product.b[static_cast<size_t>(b)] * product.c[static_cast<size_t>(c)];
        }
        const bool meets = a % scheme.inner == b / scheme.columns && a / scheme.inner == c / scheme.columns &&
                           b % scheme.columns == c % scheme.columns;
        EXPECT_EQ(sum, meets ? 1 : 0) << "blocks " << a << " of A, " << b << " of B, " << c << " of C";
      }
    }
  }
}

TEST_P(BilinearSchemeTest, HasOnlyTermsThatItsKernelsCanTake) {
  const BilinearScheme& scheme = *GetParam();
  std::array<bool, 6> is_set = {};
  for (const BilinearScheme::Product& product : scheme.products) {
    const auto terms = [](const auto& signs) { return signs.size() - std::count(signs.begin(), signs.end(), 0); };
    EXPECT_LE(terms(product.c), 4);
    EXPECT_TRUE(scheme.packs_sums || terms(product.b) <= 2);
    EXPECT_NE(std::find(product.b.begin(), product.b.end(), 1), product.b.end());
    for (size_t c = 0; c < product.c.size(); ++c) {
      EXPECT_TRUE(product.c[c] >= 0 || is_set[c]) << "subtracted from block " << c << " before that is set";
      is_set[c] = is_set[c] || product.c[c] != 0;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, BilinearSchemeTest, ::testing::Values(&kStrassen222, &kHopcroftKerr233),
                         [](const auto& test) { return "S" + std::string(test.param->name); });

}  // namespace
}  // namespace lathe
