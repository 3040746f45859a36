// Scattering of so many updates that threads share them: those of one place still come in their order.
#include <gtest/gtest.h>

#include <cstring>

#include "ops/pointwise/number_cast.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

constexpr int64_t kUpdates = 1100, kPlaces = 40, kColumns = 70;  // neither whole cache lines

Tensor places(const Dims& dims, int64_t extent, std::mt19937& random) {
  Tensor tensor(DType::i64, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.mutable_data<int64_t>()[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(2 * extent)) - extent;
  }
  return tensor;
}

void expect_equal(OpTester& tester) {
  const Tensor expected = tester.result();
  for (const int threads : {1, 2, 3}) {
    const auto got = tester.lowered(Isa::avx2, threads);
    ASSERT_TRUE(got);
    EXPECT_EQ(std::memcmp((*got)[0].raw(), expected.raw(), expected.bytes()), 0) << threads << " threads";
  }
}

TEST(ScatterShares, OfRunsAreTheSameForAnyNumberOfThreads) {
  std::mt19937 random(1);
  for (const char* reduction : {"none", "add", "max"}) {
    SCOPED_TRACE(reduction);
    OpTester tester("ScatterND");
    tester.input(random_tensor({kPlaces, kColumns}, random))
        .input(places({kUpdates, 1}, kPlaces, random))
        .input(random_tensor({kUpdates, kColumns}, random))
        .with("reduction", reduction);
    expect_equal(tester);
  }
}

TEST(ScatterShares, OfElementsAreTheSameForAnyNumberOfThreads) {
  std::mt19937 random(2);
  for (const char* reduction : {"none", "add", "max"}) {
    for (const int64_t axis : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << reduction << " along axis " << axis);
      OpTester tester("ScatterElements");
      tester.input(random_tensor({axis == 0 ? kPlaces : kUpdates, kColumns}, random))
          .input(places({kUpdates, kColumns}, axis == 0 ? kPlaces : kColumns, random))
          .input(random_tensor({kUpdates, kColumns}, random))
          .with("axis", axis)
          .with("reduction", reduction);
      expect_equal(tester);
    }
  }
}

// An assignment to a slice: a tuple of indices for each of its elements.
Tensor box_of(const Dims& first, const Dims& extents) {
  Dims dims = extents;
  dims.push_back(static_cast<int64_t>(first.size()));
  Tensor indices(DType::i64, dims);
  auto* to = indices.mutable_data<int64_t>();
  for (IndexWalk walk(extents); !walk.done(); walk.next())
    for (size_t axis = 0; axis < first.size(); ++axis) *to++ = first[axis] + walk.index()[axis];
  return indices;
}

TEST(ConstantPlaces, OfASliceAreWrittenInRuns) {
  std::mt19937 random(3);
  for (const Dims& first : {Dims{0, 0, 0}, Dims{1, 2, 3}, Dims{-4, -9, -70}}) {
    for (const Dims& extents : {Dims{3, 7, 33}, Dims{2, 5, 67}, Dims{1, 1, 5}, Dims{3, 6, 1}}) {
      for (const DType dtype : {DType::f32, DType::i64, DType::u8}) {
        OpTester tester("ScatterND");
        tester.input(cast_elements(random_tensor({4, 9, 70}, random, 0, 90), dtype, {}))
            .constant(box_of(first, extents))
            .input(cast_elements(random_tensor(extents, random, 0, 90), dtype, {}));
        expect_equal(tester);
      }
    }
  }
}

// Runs that meet: the last update of a place counts, for any number of threads.
TEST(ConstantPlaces, ThatComeAgainKeepTheirOrder) {
  std::mt19937 random(4);
  Tensor indices(DType::i64, {300, 16, 1});
  for (int64_t i = 0; i < indices.size(); ++i) indices.mutable_data<int64_t>()[i] = i / 16 % 7 * 11 + i % 16;
  OpTester tester("ScatterND");
  tester.input(random_tensor({kUpdates}, random)).constant(indices).input(random_tensor({300, 16}, random));
  expect_equal(tester);
}

TEST(ConstantPlaces, OfWindowsAreGatheredInRuns) {
  std::mt19937 random(5);
  for (const int64_t axis : {0, 1, 2}) {
    for (const int64_t width : {1, 2, 3, 11}) {
      Tensor windows(DType::i64, {19, width});
      for (int64_t i = 0; i < windows.size(); ++i) windows.mutable_data<int64_t>()[i] = i / width * 2 + i % width - 48;
      OpTester tester("Gather");
      tester.input(random_tensor({48, 50, 52}, random)).constant(windows).with("axis", axis);
      expect_equal(tester);
    }
  }
}

TEST(ConstantPlaces, OutOfRangeAreRefused) {
  OpTester gather("Gather"), scatter("ScatterND");
  gather.input(longs({1, 2, 3})).constant(longs({0, 3}));
  scatter.input(longs({1, 2, 3})).constant(Tensor::from<int64_t>({2, 1}, {0, -4})).input(longs({7, 8}));
  for (OpTester* tester : {&gather, &scatter}) {
    EXPECT_THROW(tester->reference(), Error);
    EXPECT_THROW(tester->lowered(Isa::avx2, 1), Error);
  }
}

}  // namespace
}  // namespace lathe::testing
