#include "jit/kernels/select/find_beyond.h"

#include <gtest/gtest.h>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

TEST(FindBeyond, StopsAtTheVectorOfTheFirstElementBeyond) {
  std::mt19937 random(1);
  for (const Isa isa : testing::isas_here()) {
    const int64_t lanes = vector_lanes(isa);
    for (const SelectOrder order : {SelectOrder::largest_first, SelectOrder::smallest_first}) {
      const auto find = find_beyond_kernel(isa, order);
      const float sign = order == SelectOrder::largest_first ? 1 : -1, threshold = sign * 3;
      for (int64_t count = 0; count <= 150; ++count) {
        GuardedFloats row(static_cast<size_t>(count), random() % 2 == 0);
        for (size_t i = 0; i < row.size(); ++i) row[i] = random() % 9 == 0 ? threshold : sign * 2;
        const int64_t whole = count / lanes * lanes;
        EXPECT_EQ(find.entry()(row.data(), count, &threshold), whole) << "nothing is beyond, equal is not";
        if (count == 0) continue;
        const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
        row[static_cast<size_t>(at)] = random() % 4 == 0 ? std::nanf("") : sign * 4;
        EXPECT_EQ(find.entry()(row.data(), count, &threshold), at / lanes * lanes) << "of " << count << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
