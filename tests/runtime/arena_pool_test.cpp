#include "src/runtime/arena_pool.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

TEST(ArenaPool, GivesAgainWhatWasGivenBack) {
  ArenaPool pool;
  auto block = pool.take(100000);
  void* place = block->memory();
  std::memset(place, 1, block->bytes());
  EXPECT_EQ(block->bytes(), 100000U);
  pool.give(std::move(block));
  EXPECT_EQ(pool.take(100)->memory(), place);
}

TEST(ArenaPool, HasAnotherBlockForEachWhoTakesOne) {
  ArenaPool pool;
  const auto first = pool.take(1 << 16), second = pool.take(1 << 16);
  EXPECT_NE(first->memory(), second->memory());
}

TEST(ArenaPool, GivesTheSmallestThatIsLargeEnough) {
  ArenaPool pool;
  auto large = pool.take(1 << 20), small = pool.take(1 << 12);
  void* const of_large = large->memory();
  void* const of_small = small->memory();
  pool.give(std::move(large));
  pool.give(std::move(small));
  auto first = pool.take(1 << 11);
  EXPECT_EQ(first->memory(), of_small);
  EXPECT_EQ(pool.take(1 << 11)->memory(), of_large);
}

TEST(ArenaPool, LetsABlockThatIsTooSmallGo) {
  ArenaPool pool;
  pool.give(pool.take(1000));
  auto block = pool.take(8000);
  EXPECT_GE(block->bytes(), 9000U) << "with room to grow";
  pool.give(std::move(block));
  EXPECT_GE(pool.take(1)->bytes(), 9000U) << "the small one is gone";
}

TEST(ArenaPool, ServesRunsOfShapesInAnyOrder) {
  const Session session = testing::perceptron().load();
  for (const int64_t rows : {3, 700, 1, 2000, 3, 1999, 700, 4000, 1}) {
    const Tensor x = testing::random_input({rows, 24}, static_cast<unsigned>(rows));
    const Tensor got = session.run(std::span(&x, 1))[0], again = session.run(std::span(&x, 1))[0];
    const Tensor expected = testing::perceptron().load().run(std::span(&x, 1))[0];
    EXPECT_EQ(std::memcmp(got.raw(), expected.raw(), expected.bytes()), 0) << rows;
    EXPECT_EQ(std::memcmp(again.raw(), expected.raw(), expected.bytes()), 0) << rows;
  }
}

}  // namespace
}  // namespace lathe
