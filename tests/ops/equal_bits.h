#pragma once
// For operators whose lowering is a plain loop: operands of any type at random, and the same bits as the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"
#include "tests/ops/plain_node.h"

namespace lathe::testing {

// Small whole numbers, so that equal ones meet; of floats now and then a NaN.
inline Tensor numbers(DType dtype, const Dims& dims, std::mt19937& random, bool has_nan = false) {
  Tensor tensor(dtype, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    double value = static_cast<double>(random() % 41);
    if (is_signed(dtype) || is_float(dtype)) value -= 20;
    if (dtype == DType::boolean) value = static_cast<double>(random() % 2);
    if (has_nan && random() % 50 == 0) value = NAN;
    store_real(tensor, i, value);
  }
  return tensor;
}

inline void expect_equal_bits(OpTester& tester) {
  const std::vector<Tensor> expected = tester.reference();
  for (const Isa isa : isas_here()) {
    for (const int threads : {1, 3}) {
      const auto results = tester.lowered(isa, threads);
      ASSERT_TRUE(results.has_value()) << "the reference ran";
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ((*results)[i].dims(), expected[i].dims());
        const int cmp =
            expected[i].bytes() == 0 ? 0 : std::memcmp((*results)[i].raw(), expected[i].raw(), expected[i].bytes());
        ASSERT_EQ(cmp, 0) << "output " << i << ", " << threads << " threads, " << name_of(isa) << ", "
                          << to_string(expected[i].dims());
      }
    }
  }
}

}  // namespace lathe::testing
