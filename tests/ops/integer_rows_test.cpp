// Elementwise integers at their ends: quotients, and folds of three operands.
#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;

// Those between which quotients change, and some of any size.
template <class T>
std::vector<T> interesting(std::mt19937_64& random, size_t count) {
  constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  std::vector<T> values = {kLow, kHigh, T{1}, T{2}, T{3}, static_cast<T>(kHigh - 1), static_cast<T>(kHigh / 2)};
  if constexpr (std::is_signed_v<T>) values.insert(values.end(), {T{-1}, T{-2}, static_cast<T>(kLow + 1)});
  while (values.size() < count) values.push_back(static_cast<T>(random() >> random() % 64));
  return values;
}

// Of every a by every b, by wider integers.
template <class T>
void expect_quotients(DType dtype) {
  std::mt19937_64 random(31);
  std::vector<T> a = interesting<T>(random, 300), b = interesting<T>(random, 41);
  std::erase(b, T{0});
  Tensor divided(dtype, {static_cast<int64_t>(a.size()), 1}), divisors(dtype, {static_cast<int64_t>(b.size())});
  std::copy(a.begin(), a.end(), divided.mutable_data<T>());
  std::copy(b.begin(), b.end(), divisors.mutable_data<T>());
  OpTester tester("Div");
  tester.input(divided).constant(divisors);
  const auto made = tester.lowered(Isa::avx2, 2);
  ASSERT_TRUE(made);
  const Tensor reference = tester.result();
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      const T expected = static_cast<T>(static_cast<__int128>(a[i]) / static_cast<__int128>(b[k]));
      ASSERT_EQ((*made)[0].data<T>()[i * b.size() + k], expected) << +a[i] << " / " << +b[k];
      ASSERT_EQ(reference.data<T>()[i * b.size() + k], expected) << +a[i] << " / " << +b[k];
    }
  }
}

TEST(IntegerRows, DivideExactly) {
  expect_quotients<int32_t>(DType::i32);
  expect_quotients<int64_t>(DType::i64);
  expect_quotients<int8_t>(DType::i8);
  expect_quotients<uint8_t>(DType::u8);
}

// A float64 does not hold their sums.
TEST(IntegerRows, HaveExactMeansOfWideSums) {
  constexpr int64_t kWide = (int64_t{1} << 60) + 1;
  OpTester means("ReduceMean", 13);
  means.input(testing::tensor<int64_t>({3, 2}, {kWide, kWide + 1, -kWide, -kWide - 3, kWide, 5}))
      .with("axes", std::vector<int64_t>{1});
  EXPECT_EQ(means.with("keepdims", 0).result().elements<int64_t>()[0], kWide);  // a half is cut off
  EXPECT_EQ(means.result().elements<int64_t>()[1], -kWide - 1);
  EXPECT_EQ(means.result().elements<int64_t>()[2], (kWide + 5) / 2);
  OpTester unsigned_means("ReduceMean", 13);
  unsigned_means.input(testing::tensor<uint64_t>({2}, {uint64_t{1} << 62, (uint64_t{1} << 63) + 3}));
  EXPECT_EQ(unsigned_means.result().elements<uint64_t>()[0], ((uint64_t{3} << 62) + 3) / 2);
}

TEST(IntegerRows, FoldThreeOperands) {
  const struct {
    Dims a, b, c;
  } shapes[] = {{{37}, {37}, {37}},     {{5, 19}, {19}, {}},         {{4, 1, 7}, {1, 6, 7}, {4, 6, 1}},
                {{}, {2, 33}, {1, 33}}, {{2, 9000}, {2, 1}, {9000}}, {{1500, 2}, {1500, 1}, {2}},
                {{0, 4}, {1, 4}, {4}},  {{1}, {1}, {3, 1}}};
  std::mt19937 random(32);
  std::uniform_int_distribution<int> uniform(0, 100);
  const auto random_of = [&](DType dtype, const Dims& dims) {
    Tensor tensor(dtype, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) store_real(tensor, i, uniform(random));
    return tensor;
  };
  for (const char* op : {"Min", "Max"}) {
    for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::f64}) {
      for (const auto& [a, b, c] : shapes) {
        OpTester tester(op);
        tester.input(random_of(dtype, a)).input(random_of(dtype, b)).input(random_of(dtype, c));
        const auto made = tester.lowered(Isa::avx2, 2);
        ASSERT_TRUE(made) << op;
        const Tensor expected = tester.result();
        ASSERT_EQ((*made)[0].dims(), expected.dims());
        EXPECT_EQ(reals_of((*made)[0]), reals_of(expected)) << op << " " << name_of(dtype) << " " << to_string(a);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
