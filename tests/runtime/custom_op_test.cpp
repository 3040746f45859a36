// Operators of a shared library (tests/custom_ops/), through the API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "lathe/lathe.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ModelBuilder;
using testing::random_input;

SessionOptions with_library(const std::string& library) {
  SessionOptions options;
  options.custom_op_libraries = {library};
  return options;
}
SessionOptions with_example() { return with_library(LATHE_EXAMPLE_OPS); }

std::string complaint(const std::function<void()>& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// y = SoftClip(x + x)
ModelBuilder soft_clip(float limit) {
  ModelBuilder model;
  const std::string x = model.input("x", {"batch", 5});
  const std::string twice = model.node("Add", {x, x});
  model.output(model.node("SoftClip", {twice}).of_domain("example").with_float("limit", limit));
  return model;
}

TEST(CustomOp, ComputesWithItsAttributes) {
  const Session session = soft_clip(0.5F).load(with_example());
  EXPECT_EQ(session.outputs()[0].dims, (Dims{-1, 5}));
  EXPECT_EQ(session.outputs()[0].symbols[0], "batch");
  for (const int64_t batch : {1, 3}) {
    const Tensor x = random_input({batch, 5}, 1);
    const Tensor y = session.run(std::vector{x})[0];
    ASSERT_EQ(y.dims(), (Dims{batch, 5}));
    for (int64_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(y.data<float>()[i], 0.5 * std::tanh(2.0 * x.data<float>()[i] / 0.5), 1e-6);
    }
  }
}

TEST(CustomOp, RunsOnManyThreadsAtOnce) {
  const Session session = soft_clip(1).load(with_example());
  const Tensor x = random_input({4, 5}, 2), expected = session.run(std::vector{x})[0];
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const Tensor y = session.run(std::vector{x})[0];
        EXPECT_TRUE(std::equal(y.data<float>(), y.data<float>() + y.size(), expected.data<float>()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CustomOp, GivesShapesThatDependOnData) {
  ModelBuilder model;
  const std::string x = model.input("x", {6});
  model.output(model.node("Neg", {model.node("Positive", {x}).of_domain("example")}));
  const Session session = model.load(with_example());
  const Tensor y = session.run(std::vector{Tensor::from<float>({6}, {1, -2, 3, 0, -5, 6})})[0];
  ASSERT_EQ(y.dims(), (Dims{3}));
  EXPECT_EQ(y.data<float>()[2], -6);
}

TEST(CustomOp, SeesWhichInputsAreAbsent) {
  ModelBuilder model;
  const std::string x = model.input("x", {6});
  model.output(model.node("Picky", {x}).of_domain("example", 2), DType::i64);
  EXPECT_EQ(*model.load(with_example()).run(std::vector{Tensor(DType::f32, {6})})[0].data<int64_t>(), 1);
}

TEST(CustomOp, NamesTheNodeThatFails) {
  ModelBuilder model;
  const std::string x = model.input("x", {6});
  model.output(model.node("Picky", {x}).of_domain("example", 2).with("broken", 1), DType::i64);
  const Session session = model.load(with_example());
  EXPECT_THAT(complaint([&] { (void)session.run(std::vector{Tensor(DType::f32, {6})}); }, ErrorCode::invalid_argument),
              AllOf(HasSubstr("'Picky_1' (Picky)"), HasSubstr("is broken on request")));
  const Session bad = soft_clip(-1).load(with_example());
  EXPECT_THAT(complaint(
                  [&] {
                    (void)bad.run(std::vector{random_input({1, 5}, 1)});
                  },
                  ErrorCode::invalid_argument),
              AllOf(HasSubstr("(SoftClip)"), HasSubstr("'limit' must be above 0")));
}

TEST(CustomOp, RefusesTypesThatItDoesNotTake) {
  ModelBuilder model;
  const std::string x = model.input("x", {5}, DType::i32);
  model.output(model.node("SoftClip", {x}).of_domain("example"), DType::i32);
  EXPECT_THAT(complaint([&] { (void)model.load(with_example()); }, ErrorCode::invalid_model),
              AllOf(HasSubstr("(SoftClip)"), HasSubstr("input 0 is int32, expected float32")));
}

TEST(CustomOp, IsUnknownWithoutItsLibraryOrBeforeItsVersion) {
  EXPECT_THAT(complaint([&] { (void)soft_clip(1).load(); }, ErrorCode::unsupported),
              HasSubstr("operator 'SoftClip' (example 1) is not supported: node 'SoftClip_2'"));
  ModelBuilder model;
  model.output(model.node("Picky", {model.input("x", {6})}).of_domain("example", 1), DType::i64);
  EXPECT_THAT(complaint([&] { (void)model.load(with_example()); }, ErrorCode::unsupported),
              HasSubstr("'Picky' (example 1) is not supported, but known in example 2 and newer: node 'Picky_1'"));
}

TEST(CustomOp, SaysWhatIsWrongWithALibrary) {
  const auto load = [](const std::string& library) { return [=] { (void)soft_clip(1).load(with_library(library)); }; };
  EXPECT_THAT(complaint(load("/nowhere/ops.so"), ErrorCode::io),
              AllOf(HasSubstr("'/nowhere/ops.so'"), HasSubstr("No such file")));
  EXPECT_THAT(complaint(load(LATHE_NO_ENTRY_OPS), ErrorCode::invalid_argument),
              HasSubstr("exports no function lathe_custom_ops"));
  EXPECT_THAT(complaint(load(LATHE_LATER_ABI_OPS), ErrorCode::invalid_argument),
              HasSubstr("made for version 2 of the interface, this Lathe has version 1"));
  EXPECT_THAT(complaint(load("/proc/self/maps"), ErrorCode::io), HasSubstr("/proc/self/maps"));
  SessionOptions twice = with_example();
  twice.custom_op_libraries.push_back(LATHE_EXAMPLE_OPS);
  EXPECT_THAT(complaint([&] { (void)soft_clip(1).load(twice); }, ErrorCode::invalid_argument),
              HasSubstr("operator 'SoftClip' of domain 'example' exists already"));
}

}  // namespace
}  // namespace lathe
