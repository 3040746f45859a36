#include "ops/gemm/bilinear_scheme.h"

#include <algorithm>

namespace lathe {
namespace {

constexpr BilinearScheme::Product kStrassenProducts[] = {
    {{1, 0, 0, 1}, {1, 0, 0, 1}, {1, 0, 0, 1}},  {{1, 0, 0, 0}, {0, 1, 0, -1}, {0, 1, 0, 1}},
    {{0, 0, 1, 1}, {1, 0, 0, 0}, {0, 0, 1, -1}}, {{0, 0, 0, 1}, {-1, 0, 1, 0}, {1, 0, 1, 0}},
    {{1, 1, 0, 0}, {0, 0, 0, 1}, {-1, 1, 0, 0}}, {{-1, 0, 1, 0}, {1, 1, 0, 0}, {0, 0, 0, 1}},
    {{0, 1, 0, -1}, {0, 0, 1, 1}, {1, 0, 0, 0}},
};

// Found by a random walk (M. Kauers and J. Moosbauer, Flip graphs for matrix multiplication, 2022) for few terms in C;
// then put in an order in which most terms are there already.
constexpr BilinearScheme::Product kHopcroftKerrProducts[] = {
    {{0, 0, 0, 1, 0, -1}, {0, 0, 1, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 1}},
    {{1, 0, 0, -1, 0, 1}, {0, 0, 1, 0, 0, 0, 1, 0, 0}, {0, 0, 0, 1, 0, 0}, 5},
    {{-1, 0, 1, 1, 0, -1}, {0, 0, 0, 0, 0, 0, 1, 0, 0}, {1, 0, 1, 0, 0, 0}, 3},
    {{0, 1, -1, 0, 0, 0}, {0, 0, 0, 0, 0, 1, 0, 0, 0}, {0, 1, 1, 0, 0, 0}},
    {{0, -1, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 1, 0, 1, 0}, {0, 1, 0, 0, 0, 0}, 1},
    {{0, 1, -1, 0, -1, 1}, {0, 0, 0, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 0, 1, 1}, 1},
    {{0, 0, 0, 1, 1, 0}, {0, 1, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 1, 0}},
    {{0, 0, 0, 0, 0, 1}, {0, 0, 1, 0, 0, 0, 0, -1, 1}, {0, 0, 0, 0, 0, 1}},
    {{1, 1, 0, 0, 0, 0}, {0, 0, 0, 1, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}},
    {{1, 0, 0, 0, 1, 0}, {0, -1, 0, 1, 0, 0, 0, 0, 0}, {0, -1, 0, 1, 0, 0}},
    {{0, 0, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 1, -1, 0, 1}, {0, 0, 1, 0, 0, 0}},
    {{0, 0, 0, 0, 1, 0}, {0, -1, 0, 0, 1, -1, 0, 0, 0}, {0, 1, 0, 0, 1, 0}},
    {{-1, 0, 0, 1, 0, 0}, {1, -1, 0, 0, 0, 0, 1, 0, 0}, {0, 0, 0, 1, 0, 0}},
    {{1, 0, 0, 0, 0, 0}, {1, 0, -1, -1, 0, 0, 0, 0, 0}, {1, 0, 0, 1, 0, 0}},
    {{0, 1, 0, 0, -1, 0}, {0, 0, 0, -1, 1, 0, 0, 1, 0}, {0, 1, 0, 0, 0, 0}},
};

}  // namespace

bool BilinearScheme::takes_sums() const {
  return std::any_of(products.begin(), products.end(), [](const Product& product) { return product.takes >= 0; });
}

const BilinearScheme kStrassen222 = {"2x2x2", 2, 2, 2, kStrassenProducts, false};
const BilinearScheme kPackedStrassen222 = {"2x2x2 packed", 2, 2, 2, kStrassenProducts, true};
const BilinearScheme kHopcroftKerr233 = {"2x3x3", 2, 3, 3, kHopcroftKerrProducts, true};

}  // namespace lathe
