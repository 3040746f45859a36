#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;
using testing::random_bytes;

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,  DType::i16,
                            DType::i32, DType::i64, DType::u8,  DType::u16,  DType::u32, DType::u64};

// Ties, zeros of both signs, infinities and NaN among ordinary numbers.
Tensor odd_floats(const Dims& dims, std::mt19937& random) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0.0F, -0.0F, infinity, -infinity, std::nanf(""), -std::nanf(""), 1e-42F, 2.5F};
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.mutable_data<float>()[i] =
        random() % 4 == 0 ? odd[random() % std::size(odd)] : static_cast<float>(random() % 200) / 8 - 12;
  }
  return tensor;
}

void expect_as_reference(const Tensor& data, int64_t axis, int64_t count, bool is_largest, int unwanted,
                         std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(data.dtype())) + " " + to_string(data.dims()) + " axis " + std::to_string(axis) +
               ", " + std::to_string(count) + (is_largest ? " largest" : " smallest"));
  OpTester op("TopK", 11);
  op.input(data).constant(Tensor::from<int64_t>({1}, {count})).with("axis", axis).outputs(2);
  op.with("largest", is_largest ? 1 : 0);
  if (unwanted >= 0) op.unwanted(unwanted);
  const std::vector<Tensor> expected = op.reference();
  for (const Isa isa : testing::isas_here()) {
    const auto got = op.lowered(isa, 1 + static_cast<int>(random() % 3));
    ASSERT_TRUE(got.has_value()) << "the reference would run";
    for (size_t i = 0; i < 2; ++i) {
      if (static_cast<int>(i) == unwanted) continue;
      ASSERT_EQ((*got)[i].dims(), expected[i].dims());
      ASSERT_EQ(std::memcmp((*got)[i].raw(), expected[i].raw(), expected[i].bytes()), 0)
          << (i == 0 ? "values" : "indices") << " differ";
    }
  }
}

// Bytes at random: many equal elements of narrow types, all kinds of floating point.
TEST(TopK, SelectsAsTheReferenceInEveryType) {
  std::mt19937 random(1);
  for (const DType dtype : kTypes) {
    for (int round = 0; round < 24; ++round) {
      const auto pick = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
      const Dims dims = {pick(4), pick(90), round % 3 == 0 ? pick(5) : 1};
      const int64_t axis = static_cast<int64_t>(random() % 3), extent = dims[static_cast<size_t>(axis)];
      const auto count = static_cast<int64_t>(random() % static_cast<uint64_t>(extent + 1));
      expect_as_reference(random_bytes(dtype, dims, random), axis, count, round % 2 == 0, -1, random);
    }
  }
}

// What is kept of a row fills its pool, and is made fewer, several times.
TEST(TopK, SelectsFromLongRowsOfEveryType) {
  std::mt19937 random(11);
  for (const DType dtype : kTypes) {
    for (const int64_t count : {1, 5, 33, 70, 300, 3000}) {
      const Dims dims = {2, 2500 + static_cast<int64_t>(random() % 1000)};
      const int64_t chosen = std::min(count, dims[1]);
      for (const bool is_largest : {false, true})
        expect_as_reference(random_bytes(dtype, dims, random), 1, chosen, is_largest, -1, random);
    }
  }
}

TEST(TopK, SelectsFromLongRowsOfOddFloats) {
  std::mt19937 random(12);
  for (const int64_t count : {1, 4, 40, 200, 4500}) {
    for (const bool is_largest : {false, true}) {
      expect_as_reference(odd_floats({2, 5000}, random), 1, count, is_largest, -1, random);
      expect_as_reference(testing::random_tensor({2, 5000}, random), 1, count, is_largest, -1, random);
    }
  }
}

TEST(TopK, SelectsOfColumnsSideBySide) {
  std::mt19937 random(13);
  for (const Dims& dims : {Dims{3, 40, 16}, Dims{2, 64, 37}, Dims{1, 300, 80}, Dims{2, 9, 100}}) {
    for (const int64_t count : {1, 3, 5, 9}) {
      for (const bool is_largest : {false, true}) {
        expect_as_reference(testing::random_tensor(dims, random), 1, count, is_largest, -1, random);
        expect_as_reference(odd_floats(dims, random), 1, count, is_largest, -1, random);
      }
    }
  }
}

TEST(TopK, SelectsOfShortRowsSideBySide) {
  std::mt19937 random(14);
  for (const int64_t rows : {16, 33, 50}) {
    for (const int64_t extent : {5, 16, 64, 100, 250}) {
      for (const bool is_largest : {false, true}) {
        expect_as_reference(testing::random_tensor({rows, extent}, random), 1, 5, is_largest, -1, random);
        expect_as_reference(odd_floats({rows, extent}, random), 1, 3, is_largest, -1, random);
      }
    }
  }
}

TEST(TopK, OrdersTiesByPlaceAndNaNAboveAllNumbers) {
  std::mt19937 random(2);
  for (const int64_t extent : {1, 7, 16, 17, 63, 64, 65, 200, 1000}) {
    for (const int64_t count : {int64_t{1}, int64_t{2}, extent / 20, extent / 8, extent / 3, extent}) {
      if (count < 1 || count > extent) continue;
      for (const bool is_largest : {false, true})
        expect_as_reference(odd_floats({3, extent}, random), 1, count, is_largest, -1, random);
    }
  }
}

// The threshold is crossed by every element, or by none behind the first.
TEST(TopK, SelectsOneOfEachRow) {
  std::mt19937 random(21);
  for (const int64_t extent : {1, 7, 8, 9, 31, 80, 200}) {
    for (const bool is_largest : {true, false}) {
      expect_as_reference(odd_floats({13, extent}, random), 1, 1, is_largest, -1, random);
      expect_as_reference(testing::random_tensor({13, extent}, random), 1, 1, is_largest, -1, random);
    }
  }
}

TEST(TopK, SelectsFromOrderedRows) {
  std::mt19937 random(3);
  for (const bool rises : {false, true}) {
    constexpr int64_t kLength = 5000;
    Tensor data(DType::f32, {2, kLength});
    for (int64_t i = 0; i < data.size(); ++i)
      data.mutable_data<float>()[i] = static_cast<float>(rises ? i % kLength : -(i % kLength));
    for (const bool is_largest : {false, true}) {
      for (const int64_t count : {9, 100}) expect_as_reference(data, 1, count, is_largest, -1, random);
    }
  }
}

TEST(TopK, SelectsFromRowsOfEqualElements) {
  std::mt19937 random(5);
  for (const int64_t count : {1, 9, 100, 4999}) {
    Tensor data(DType::f32, {2, 5000});
    std::fill_n(data.mutable_data<float>(), data.size(), 2.5F);
    for (const bool is_largest : {false, true}) expect_as_reference(data, 1, count, is_largest, -1, random);
  }
}

TEST(TopK, SharesRowsAndLeavesOutWhatNobodyWants) {
  std::mt19937 random(4);
  for (const int unwanted : {-1, 0, 1})
    expect_as_reference(testing::random_tensor({300, 700}, random), -1, 5, true, unwanted, random);
}

}  // namespace
}  // namespace lathe
