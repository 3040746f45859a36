#include "src/runtime/result_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

const TensorType kLarge = TensorType::of(DType::f32, {100, 1000});

TEST(ResultMemory, WhatWasLetGoOfServesTheNextResultOfItsSize) {
  const ResultMemory memory(1);
  Tensor first = memory.make(kLarge);
  const void* place = first.raw();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0U);
  EXPECT_NE(memory.make(kLarge).raw(), place) << "still in use";
  first = Tensor();
  first = memory.make(TensorType::of(DType::f32, {1000, 100}));
  EXPECT_NE(first.raw(), nullptr);
  const Tensor second = memory.make(TensorType::of(DType::f32, {1000, 200}));
  EXPECT_NE(second.raw(), first.raw());
}

TEST(ResultMemory, ACopyKeepsTheMemoryInUse) {
  const ResultMemory memory(1);
  Tensor first = memory.make(kLarge);
  const Tensor copy = first.reshaped({100000});
  first = Tensor();
  EXPECT_NE(memory.make(kLarge).raw(), copy.raw());
}

TEST(ResultMemory, ResultsOutliveIt) {
  Tensor left;
  {
    const ResultMemory memory(2);
    left = memory.make(kLarge);
  }
  for (float& value : std::span(left.mutable_data<float>(), static_cast<size_t>(left.size()))) value = 1;
  left = Tensor();
}

TEST(ResultMemory, ASessionGivesEachOverlappingRunResultsOfItsOwn) {
  const auto loaded = testing::perceptron().load();
  Tensor x(DType::f32, {3000, 24});
  const std::vector<Tensor> inputs{x};
  const std::vector<Tensor> expected = loaded.run(inputs);
  std::vector<std::thread> users;
  for (int user = 0; user < 3; ++user) {
    users.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const std::vector<Tensor> got = loaded.run(inputs);
        EXPECT_NE(got[0].raw(), expected[0].raw());
        EXPECT_EQ(std::memcmp(got[0].raw(), expected[0].raw(), expected[0].bytes()), 0);
      }
    });
  }
  for (std::thread& user : users) user.join();
}

}  // namespace
}  // namespace lathe
