// Operators that take, put or find elements by indices, against their references: the same bits, over random shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/ops/equal_bits.h"

namespace lathe {
namespace {

using testing::expect_equal_bits;
using testing::longs;
using testing::numbers;
using testing::OpTester;
using testing::random_dims;

Tensor indices(DType dtype, const Dims& dims, int64_t extent, std::mt19937& random) {
  Tensor tensor(dtype, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    store_real(tensor, i,
               static_cast<double>(random() % static_cast<uint64_t>(2 * extent)) - static_cast<double>(extent));
  }
  return tensor;
}

// Elements and indices of types that take turns.
void expect_equal_elements(OpTester& tester, int turn, const Dims& dims, const Dims& taken, size_t axis,
                           std::mt19937& random) {
  tester.input(numbers(turn % 2 == 0 ? DType::f32 : DType::u8, dims, random))
      .input(indices(turn % 3 == 0 ? DType::i32 : DType::i64, taken, dims[axis], random))
      .with("axis", static_cast<int64_t>(axis));
  expect_equal_bits(tester);
}

TEST(Indices, TakeElements) {
  std::mt19937 random(10);
  for (int i = 0; i < 40; ++i) {
    const Dims dims = random_dims(random, 1 + random() % 4, 17);
    const size_t axis = random() % dims.size();
    Dims taken = dims;
    for (int64_t& extent : taken) extent = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(extent));
    taken[axis] = 1 + static_cast<int64_t>(random() % 30);
    OpTester tester("GatherElements");
    expect_equal_elements(tester, i, dims, taken, axis, random);
  }
}

TEST(Indices, TakeElementsOfSpreadPlaces) {
  std::mt19937 random(19);
  for (int i = 0; i < 60; ++i) {
    const Dims dims = random_dims(random, 1 + random() % 4, 17);
    const size_t axis = random() % dims.size();
    Dims taken = dims;
    for (int64_t& extent : taken) extent = random() % 2 == 0 ? 1 : extent;
    taken[axis] = static_cast<int64_t>(random() % 30);
    OpTester tester("TakeAlongAxis", 1, "lathe");
    expect_equal_elements(tester, i, dims, taken, axis, random);
  }
}

TEST(Indices, OfSpreadPlacesAreGatherElementsOfAllOfThem) {
  std::mt19937 random(20);
  const Tensor data = numbers(DType::f32, {3, 4, 6}, random), once = indices(DType::i64, {1, 4, 5}, 6, random);
  Tensor all(DType::i64, {3, 4, 5});
  for (int64_t i = 0; i < 60; ++i) all.mutable_data<int64_t>()[i] = once.data<int64_t>()[i % 20];
  OpTester spread("TakeAlongAxis", 1, "lathe"), plain("GatherElements");
  const Tensor got = spread.input(data).input(once).with("axis", -1).result(),
               expected = plain.input(data).input(all).with("axis", -1).result();
  EXPECT_EQ(got.dims(), expected.dims());
  EXPECT_EQ(std::memcmp(got.raw(), expected.raw(), expected.bytes()), 0);
}

TEST(Indices, TakeRowsOrNone) {
  std::mt19937 random(18);
  for (const int64_t columns : {1, 2, 3, 8, 40}) {
    for (const int64_t count : {0, 1, 30}) {
      OpTester tester("Gather", 13);
      tester.input(numbers(DType::f32, {2, 9, columns}, random)).with("axis", 1);
      expect_equal_bits(tester.input(indices(count == 1 ? DType::i32 : DType::i64, {count}, 9, random)));
    }
  }
}

TEST(Indices, TakeRunsByTuples) {
  std::mt19937 random(11);
  for (int i = 0; i < 40; ++i) {
    const Dims dims = random_dims(random, 2 + random() % 3, 9);
    const size_t batch = random() % 2, depth = 1 + random() % (dims.size() - batch);
    Dims tuples(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(batch));
    tuples.push_back(1 + static_cast<int64_t>(random() % 20));
    tuples.push_back(static_cast<int64_t>(depth));
    const int64_t least = *std::min_element(dims.begin(), dims.end());
    OpTester tester("GatherND");
    tester.input(numbers(i % 2 == 0 ? DType::f32 : DType::i64, dims, random))
        .input(indices(DType::i64, tuples, least, random))
        .with("batch_dims", static_cast<int64_t>(batch));
    expect_equal_bits(tester);
  }
}

TEST(Indices, ScatterElements) {
  std::mt19937 random(12);
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    for (int i = 0; i < 12; ++i) {
      const Dims dims = random_dims(random, 1 + random() % 3, 17);
      const size_t axis = random() % dims.size();
      Dims put = dims;
      for (int64_t& extent : put) extent = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(extent));
      const DType dtype = i % 2 == 0 ? DType::f32 : DType::i64;
      OpTester tester("ScatterElements");
      tester.input(numbers(dtype, dims, random))
          .input(indices(i % 3 == 0 ? DType::i32 : DType::i64, put, dims[axis], random))
          .input(numbers(dtype, put, random))
          .with("axis", static_cast<int64_t>(axis))
          .with("reduction", reduction);
      expect_equal_bits(tester);
    }
  }
}

TEST(Indices, ScatterRunsByTuples) {
  std::mt19937 random(13);
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    for (int i = 0; i < 12; ++i) {
      const Dims dims = random_dims(random, 2 + random() % 2, 13);
      const size_t depth = 1 + random() % dims.size();
      const Dims tuples{1 + static_cast<int64_t>(random() % 9), static_cast<int64_t>(depth)};
      Dims updates{tuples[0]};
      updates.insert(updates.end(), dims.begin() + static_cast<ptrdiff_t>(depth), dims.end());
      const DType dtype = i % 2 == 0 ? DType::f32 : DType::i64;
      OpTester tester("ScatterND");
      tester.input(numbers(dtype, dims, random))
          .input(indices(DType::i64, tuples, *std::min_element(dims.begin(), dims.end()), random))
          .input(numbers(dtype, updates, random))
          .with("reduction", reduction);
      expect_equal_bits(tester);
    }
  }
}

TEST(Indices, AreRefusedOutOfRange) {
  std::mt19937 random(14);
  for (const int64_t index : {int64_t{5}, int64_t{-6}, int64_t{1} << 40}) {
    OpTester elements("GatherElements"), tuples("GatherND"), scattered("ScatterElements");
    OpTester spread("TakeAlongAxis", 1, "lathe");
    spread.input(numbers(DType::f32, {2, 5}, random)).input(Tensor::from<int64_t>({1, 2}, {1, index})).with("axis", 1);
    elements.input(numbers(DType::f32, {5}, random)).input(longs({1, index}));
    tuples.input(numbers(DType::f32, {5}, random)).input(Tensor::from<int64_t>({2, 1}, {1, index}));
    scattered.input(numbers(DType::f32, {5}, random)).input(longs({1, index})).input(numbers(DType::f32, {2}, random));
    for (OpTester* tester : {&elements, &spread, &tuples, &scattered}) {
      EXPECT_THROW(tester->reference(), Error);
      EXPECT_THROW(tester->lowered(Isa::avx2, 1), Error);
    }
  }
}

TEST(ArgExtreme, FindsThePlaceAlongAnyAxis) {
  std::mt19937 random(15);
  for (const char* op : {"ArgMax", "ArgMin"}) {
    for (const DType dtype : {DType::f32, DType::i64, DType::i32}) {
      for (int i = 0; i < 16; ++i) {
        Dims dims = random_dims(random, 3, 13);
        dims[random() % 3] = 1 + static_cast<int64_t>(random() % 300);
        OpTester tester(op, 13);
        tester.input(numbers(dtype, dims, random, i % 4 == 3))
            .with("axis", static_cast<int64_t>(random() % 3))
            .with("select_last_index", static_cast<int64_t>(i % 2))
            .with("keepdims", static_cast<int64_t>(random() % 2));
        SCOPED_TRACE(std::string(op) + " " + to_string(dims) + " " + std::to_string(i));
        expect_equal_bits(tester);
      }
    }
  }
}

TEST(ArgExtreme, CutsWideRowsIntoColumns) {
  std::mt19937 random(16);
  OpTester tester("ArgMax", 13);
  tester.input(numbers(DType::f32, {2, 5, 2500}, random)).with("axis", 1);
  expect_equal_bits(tester);
}

TEST(RunningSums, AddUpAlongAnyAxis) {
  std::mt19937 random(17);
  for (const DType dtype : {DType::f32, DType::i64, DType::i32, DType::f64}) {
    for (int i = 0; i < 12; ++i) {
      const Dims dims = random_dims(random, 3, 21);
      OpTester tester("CumSum");
      tester.input(numbers(dtype, dims, random))
          .constant(Tensor::scalar<int64_t>(static_cast<int64_t>(random() % 3)))
          .with("exclusive", i % 2)
          .with("reverse", i / 2 % 2);
      expect_equal_bits(tester);
    }
  }
}

TEST(OneHot, PutsOneForEachIndex) {
  std::mt19937 random(18);
  for (int64_t axis = -1; axis < 3; ++axis) {
    for (const DType dtype : {DType::i64, DType::i32, DType::f32}) {
      OpTester tester("OneHot");
      tester
          .input(indices(dtype, {5, 9}, 9, random))  // some beyond the depth
          .constant(Tensor::scalar<int64_t>(7))
          .constant(testing::floats({0.5f, 3}))
          .with("axis", axis);
      expect_equal_bits(tester);
    }
  }
}

TEST(NonZero, ListsPlacesInOrder) {
  std::mt19937 random(23);
  for (const DType dtype : {DType::boolean, DType::f32, DType::i64, DType::f16}) {
    const Dims dims = random_dims(random, 3, 9);
    const Tensor x = numbers(dtype, dims, random);
    const std::vector<double> values = reals_of(x);
    std::vector<std::vector<int64_t>> expected;
    for (IndexWalk at(dims); !at.done(); at.next()) {
      const auto& i = at.index();
      if (values[static_cast<size_t>((i[0] * dims[1] + i[1]) * dims[2] + i[2])] != 0) expected.push_back(i);
    }
    OpTester tester("NonZero");
    const Tensor result = tester.input(x).result();
    ASSERT_EQ(result.dims(), (Dims{3, static_cast<int64_t>(expected.size())}));
    for (size_t i = 0; i < expected.size(); ++i) {
      for (size_t axis = 0; axis < 3; ++axis) {
        EXPECT_EQ(result.data<int64_t>()[axis * expected.size() + i], expected[i][axis]);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
