#pragma once
// Operands of products whose B is rounded as it is packed, at guard pages.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ops/gemm/gemm_pack.h"
#include "tests/jit/guarded_floats.h"

namespace lathe::testing {

struct RoundedCase {
  int64_t m, n, k, gap;  // gap: elements between rows of A and C
  bool is_turned, has_epilogue;
  int threads;
};

struct RoundedOperands {
  // A and C within [-1, 1]; B's elements by element(random, column).
  template <class Element>
  RoundedOperands(const RoundedCase& test, std::mt19937& random, Element element)
      : a_stride(test.k + test.gap),
        c_stride(test.n + test.gap),
        columns(test.n),
        a(static_cast<size_t>((test.m - 1) * a_stride + test.k)),
        b(static_cast<size_t>(test.k * test.n)),
        c(static_cast<size_t>((test.m - 1) * c_stride + test.n)),
        view{b.data(), test.k, test.n, test.is_turned ? 1 : test.n, test.is_turned ? test.k : 1} {
    a.randomize(random, -1, 1);
    c.randomize(random, -1, 1);
    for (int64_t row = 0; row < test.k; ++row)
      for (int64_t column = 0; column < test.n; ++column) b[place(row, column)] = element(random, column);
    before.assign(c.data(), c.data() + c.size());
  }

  // Of an element of B.
  size_t place(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * view.row_stride + column * view.column_stride);
  }

  void check_gaps() const {
    for (size_t i = 0; i < c.size(); ++i) {
      if (static_cast<int64_t>(i) % c_stride < columns) continue;
      ASSERT_EQ(c[i], before[i]) << "behind row " << static_cast<int64_t>(i) / c_stride;
    }
  }

  int64_t a_stride, c_stride, columns;
  GuardedFloats a, b, c;
  MatrixView view;            // B
  std::vector<float> before;  // C
};

}  // namespace lathe::testing
