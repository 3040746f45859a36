// After its first runs, a session allocates nothing. This program counts every operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/runtime/small_models.h"

namespace {
std::atomic<long> allocations = 0;

void* counted_allocation(size_t bytes, size_t alignment) {
  ++allocations;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined: g++ 12 would see free() on what a new that is not inlined has returned, and warn.
[[gnu::noinline]] void give_back(void* memory) { std::free(memory); }
}  // namespace

void* operator new(size_t bytes) { return counted_allocation(bytes, 1); }
void* operator new[](size_t bytes) { return counted_allocation(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted_allocation(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return counted_allocation(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { give_back(memory); }

namespace lathe {
namespace {

long allocations_of_runs(const Session& session, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> results = session.run(inputs);
  for (int i = 0; i < 3; ++i) session.run_into(inputs, results);
  const long before = allocations;
  for (int i = 0; i < 10; ++i) session.run_into(inputs, results);
  return allocations - before;
}

class SteadyRun : public ::testing::TestWithParam<int> {
 protected:
  SessionOptions options() const {
    SessionOptions made;
    made.threads = GetParam();
    made.use_cache = false;
    return made;
  }
};

TEST_P(SteadyRun, CountsAllocationsAtAll) {
  const long before = allocations;
  const Tensor some(DType::f32, {2});
  EXPECT_GT(allocations, before);
}

TEST_P(SteadyRun, OfAConvolutionalNetworkAllocatesNothing) {
  const Session session = testing::conv_net().load(options());
  EXPECT_EQ(allocations_of_runs(session, {testing::random_input({2, 3, 20, 24}, 1)}), 0);
}

TEST_P(SteadyRun, OfATransformerAllocatesNothing) {
  const Session session = testing::transformer_block().load(options());
  EXPECT_EQ(allocations_of_runs(session, {testing::random_input({2, 9, 48}, 1), Tensor(DType::f32, {2, 1, 1, 9})}), 0);
}

TEST_P(SteadyRun, OfARecurrentNetworkAllocatesNothing) {
  const Session session = testing::recurrent_net().load(options());
  EXPECT_EQ(allocations_of_runs(session, {testing::random_input({12, 2, 20}, 1)}), 0);
}

TEST_P(SteadyRun, OfAPerceptronAllocatesNothing) {
  const Session session = testing::perceptron().load(options());
  EXPECT_EQ(allocations_of_runs(session, {testing::random_input({7, 24}, 1)}), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, SteadyRun, ::testing::Values(1, 2),
                         [](const auto& each) { return std::to_string(each.param) + "Threads"; });

}  // namespace
}  // namespace lathe
