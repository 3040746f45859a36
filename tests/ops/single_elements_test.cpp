// Operators that repeat, place or keep single elements, of any type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;

TEST(Expand, FillsRowsWithOneElementEach) {
  std::mt19937 random(31);
  for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::i64, DType::c128}) {
    for (const int64_t count : {1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 200}) {
      Tensor data(dtype, {3, 5, 1});
      auto* bytes = static_cast<uint8_t*>(data.mutable_raw());
      for (size_t i = 0; i < data.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random());
      OpTester tester("Expand", 13);
      tester.input(data).constant(Tensor::from<int64_t>({3}, {3, 5, count}));
      for (const int threads : {1, 2}) {
        const auto made = tester.lowered(Isa::avx2, threads);
        ASSERT_TRUE(made);
        const Tensor& got = (*made)[0];
        const size_t size = data.bytes() / 15;
        for (int64_t i = 0; i < 15 * count; ++i) {
          ASSERT_EQ(std::memcmp(static_cast<const char*>(got.raw()) + static_cast<size_t>(i) * size,
                                static_cast<const char*>(data.raw()) + static_cast<size_t>(i / count) * size, size),
                    0)
              << name_of(dtype) << " " << count << " at " << i;
        }
      }
    }
  }
}

TEST(EyeLike, HasOnesOnItsDiagonal) {
  for (const DType dtype : {DType::f32, DType::i64, DType::boolean, DType::f16}) {
    for (const int64_t k : {0, 1, -2, 4, -3, 100, -100}) {
      OpTester tester("EyeLike", 9);
      tester.input(Tensor(DType::f32, {3, 5})).with("dtype", static_cast<int>(dtype)).with("k", k);
      const auto made = tester.lowered(Isa::avx2, 1);
      ASSERT_TRUE(made);
      const std::vector<double> got = reals_of((*made)[0]), expected = reals_of(tester.result());
      EXPECT_EQ(got, expected);
      for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i % 5 - i / 5 == k ? 1 : 0) << k;
    }
  }
}

TEST(Compress, KeepsWhatTheConditionSays) {
  std::mt19937 random(32);
  for (const DType dtype : {DType::u8, DType::f32, DType::i64}) {
    for (const int axis : {-1, 0, 1, 2}) {  // -1: of all elements
      for (const int64_t length : {0, 1, 4, 6}) {
        Tensor data(dtype, {4, 6, 4}), condition(DType::boolean, {length});
        for (int64_t i = 0; i < data.size(); ++i) store_real(data, i, static_cast<double>(i));
        std::vector<int64_t> kept;
        const int64_t extent = axis < 0 ? data.size() : data.dims()[static_cast<size_t>(axis)];
        for (int64_t i = 0; i < length; ++i) {
          condition.mutable_data<bool>()[i] = i < extent && random() % 2 == 0;
          if (condition.data<bool>()[i]) kept.push_back(i);
        }
        OpTester tester("Compress", 11);
        tester.input(data).input(condition);
        if (axis >= 0) tester.with("axis", axis);
        std::vector<double> expected;
        const int64_t inner = axis < 0 || axis == 2 ? 1 : axis == 1 ? 4 : 24;
        for (int64_t outer = 0; outer < data.size() / inner / extent; ++outer) {
          for (const int64_t i : kept) {
            for (int64_t at = 0; at < inner; ++at)
              expected.push_back(static_cast<double>((outer * extent + i) * inner + at));
          }
        }
        EXPECT_EQ(reals_of(tester.result()), expected) << axis << " " << length;
      }
    }
  }
  Tensor all(DType::boolean, {3});
  std::fill_n(all.mutable_data<bool>(), 3, true);
  OpTester beyond("Compress", 11);
  beyond.input(Tensor(DType::f32, {2, 2})).input(all).with("axis", 0);
  EXPECT_THROW(beyond.result(), Error);
}

Tensor four_floats() { return Tensor::from<float>({1, 1, 2, 2}, {1, 2, 3, 4}); }

TEST(MaxUnpool, PutsElementsWhereTheyCameFrom) {
  using Ints = std::vector<int64_t>;
  const auto unpool = [](std::vector<int64_t> places) {
    OpTester tester("MaxUnpool", 11);
    tester.with("kernel_shape", Ints{2, 2}).with("strides", Ints{2, 2}).input(four_floats());
    tester.input(Tensor::from<int64_t>({1, 1, 2, 2}, std::span<const int64_t>(places)));
    return tester;
  };
  EXPECT_EQ(reals_of(unpool({5, 7, 13, 15}).result()),
            (std::vector<double>{0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4}));
  EXPECT_THROW(unpool({5, 7, 13, 16}).result(), Error);
  EXPECT_THROW(unpool({5, -1, 13, 15}).result(), Error);
  auto larger = unpool({5, 7, 13, 15});
  larger.constant(Tensor::from<int64_t>({4}, {1, 1, 5, 5}));
  const std::vector<double> spread = reals_of(larger.result());
  EXPECT_EQ(spread[6], 1);
  EXPECT_EQ(spread[8], 2);
  EXPECT_EQ(spread[16], 3);
  EXPECT_EQ(spread[18], 4);
}

TEST(Where, TakesWholeRowsByOneCondition) {
  for (const DType dtype : {DType::i32, DType::f64, DType::u8}) {
    for (const bool is_scalar : {false, true}) {
      Tensor condition(DType::boolean, {5, 1}), yes(dtype, {5, 37}), no(dtype, is_scalar ? Dims{} : Dims{37});
      for (int i = 0; i < 5; ++i) condition.mutable_data<bool>()[i] = i % 2 == 0;
      for (int64_t i = 0; i < yes.size(); ++i) store_real(yes, i, static_cast<double>(i % 100));
      for (int64_t i = 0; i < no.size(); ++i) store_real(no, i, static_cast<double>(i + 100));
      OpTester tester("Where", 16);
      tester.input(condition).input(yes).input(no);
      const auto made = tester.lowered(Isa::avx2, 2);
      ASSERT_TRUE(made) << name_of(dtype);
      const std::vector<double> got = reals_of((*made)[0]);
      for (int64_t i = 0; i < 5 * 37; ++i) {
        const double expected = i / 37 % 2 == 0 ? static_cast<double>(i % 100) : 100 + (is_scalar ? 0 : i % 37);
        ASSERT_EQ(got[static_cast<size_t>(i)], expected) << name_of(dtype) << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
