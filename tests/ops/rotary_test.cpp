// lathe::Rotary against plain loops: both orders of pairs, tables of elements and of pairs, widths with tails.
#include <gtest/gtest.h>

#include "tests/jit/guarded_floats.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;

struct Case {
  Dims table;  // but for the last axis
  int64_t size;
  bool is_interleaved, is_whole;
};

// x is [2, 3, 4, size].
std::vector<double> turned(const Tensor& x, const Tensor& cosines, const Tensor& sines, const Case& c) {
  std::vector<double> y(static_cast<size_t>(x.size()));
  const int64_t half = c.size / 2, width = c.is_whole ? c.size : half;
  for (int64_t row = 0; row < 24; ++row) {
    const int64_t index[] = {row / 12, row / 4 % 3, row % 4};
    int64_t at = 0;
    for (size_t axis = 0; axis < 3; ++axis) at = at * c.table[axis] + (c.table[axis] == 1 ? 0 : index[axis]);
    const float *from = x.data<float>() + row * c.size, *by_cos = cosines.data<float>() + at * width,
                *by_sin = sines.data<float>() + at * width;
    for (int64_t pair = 0; pair < half; ++pair) {
      const int64_t a = c.is_interleaved ? 2 * pair : pair, b = c.is_interleaved ? a + 1 : pair + half;
      const auto number = [&](const float* table, int64_t i) {
        return static_cast<double>(table[c.is_whole ? i : pair]);
      };
      const auto first = static_cast<double>(from[a]), second = static_cast<double>(from[b]);
      y[static_cast<size_t>(row * c.size + a)] = first * number(by_cos, a) - second * number(by_sin, a);
      y[static_cast<size_t>(row * c.size + b)] = second * number(by_cos, b) + first * number(by_sin, b);
    }
  }
  return y;
}

TEST(Rotary, TurnsAsPlainLoopsDo) {
  std::mt19937 random(3);
  for (const Dims& table : {Dims{1, 1, 1}, Dims{1, 3, 1}, Dims{2, 1, 4}, Dims{2, 3, 4}}) {
    for (const int64_t size : {2, 6, 8, 10, 24, 64}) {
      for (const int form : {0, 1, 2, 3}) {
        const Case c{table, size, form % 2 == 1, form / 2 == 1};
        Dims dims = table;
        dims.push_back(c.is_whole ? size : size / 2);
        const Tensor x = testing::random_tensor({2, 3, 4, size}, random),
                     cosines = testing::random_tensor(dims, random), sines = testing::random_tensor(dims, random);
        OpTester tester("Rotary", 1, "lathe");
        tester.input(x).input(cosines).input(sines).with("interleaved", c.is_interleaved ? 1 : 0);
        for (const int threads : {1, 3}) {
          const auto made = tester.lowered(Isa::avx2, threads);
          ASSERT_TRUE(made);
          const std::vector<double> expected = turned(x, cosines, sines, c);
          for (size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR((*made)[0].data<float>()[i], expected[i], 4e-7) << to_string(dims) << " form " << form;
        }
      }
    }
  }
}

TEST(Rotary, RefusesTablesOfTwoWidths) {
  std::mt19937 random(4);
  OpTester tester("Rotary", 1, "lathe");
  tester.input(testing::random_tensor({3, 8}, random)).input(testing::random_tensor({8}, random));
  EXPECT_THROW(tester.input(testing::random_tensor({4}, random)).reference(), Error);
}

}  // namespace
}  // namespace lathe
