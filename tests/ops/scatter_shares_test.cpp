// Scattering of so many updates that threads share them: those of one place still come in their order.
#include <gtest/gtest.h>

#include <cstring>

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

}  // namespace
}  // namespace lathe::testing
