// A session as its user sees it: load, ask for inputs, run, reshape, many threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "lathe/profile.h"
#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using testing::conv_net;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ModelBuilder;
using ::testing::Not;
using testing::perceptron;
using testing::random_input;

SessionOptions with_threads(int threads) {
  SessionOptions options;
  options.threads = threads;
  options.use_cache = false;
  return options;
}

std::vector<Tensor> run_one(const Session& session, const Tensor& input) { return session.run(std::span(&input, 1)); }

::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims())
    return ::testing::AssertionFailure() << "shapes " << to_string(a.dims()) << " and " << to_string(b.dims());
  if (a.bytes() > 0 && std::memcmp(a.raw(), b.raw(), a.bytes()) != 0) return ::testing::AssertionFailure() << "bits";
  return ::testing::AssertionSuccess();
}

template <class Action>
std::string error_of(Action action, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// y = x + x W, with a second input that shares the open extent: its results can be told from the outside.
ModelBuilder two_inputs() {
  ModelBuilder model;
  const std::string x = model.input("x", {"batch", 4}), scale = model.input("scale", {"batch", 1});
  model.input("count", {2, 3}, DType::i64);
  model.output(model.node("Mul", {x, scale}));
  return model;
}

std::vector<Tensor> two_inputs_tensors(int64_t batch) {
  return {random_input({batch, 4}, 1), random_input({batch, 1}, 2), Tensor(DType::i64, {2, 3})};
}

TEST(Session, TakesTransposedConvolutionsWhoseFirstPixelAloneIsPadding) {
  ModelBuilder model;
  const std::string x = model.input("x", {1, 1, "length"});
  const std::string weights = model.weight(Tensor::from<float>({1, 1, 2}, {1, 10}));
  model.output(model.node("ConvTranspose", {x, weights}).with("pads", {2, 1}));
  const std::vector<Tensor> y = run_one(model.load(with_threads(1)), Tensor::from<float>({1, 1, 4}, {1, 2, 3, 4}));
  EXPECT_THAT(y[0].dims(), ElementsAre(1, 1, 2));
  EXPECT_THAT(y[0].elements<float>(), ElementsAre(23, 34));
}

TEST(Session, TellsNamesTypesAndSymbolicShapes) {
  const Session session = two_inputs().load(with_threads(1));
  ASSERT_EQ(session.inputs().size(), 3U);
  EXPECT_EQ(session.inputs()[0].name, "x");
  EXPECT_EQ(session.inputs()[0].dtype, DType::f32);
  EXPECT_THAT(session.inputs()[0].dims, ElementsAre(-1, 4));
  EXPECT_THAT(session.inputs()[0].symbols, ElementsAre("batch", ""));
  EXPECT_EQ(session.inputs()[2].dtype, DType::i64);
  EXPECT_THAT(session.inputs()[2].dims, ElementsAre(2, 3));
  ASSERT_EQ(session.outputs().size(), 1U);
  EXPECT_EQ(session.outputs()[0].name, "Mul_1");
  EXPECT_EQ(session.outputs()[0].dtype, DType::f32);
  EXPECT_THAT(session.outputs()[0].dims, ElementsAre(-1, 4));
  EXPECT_THAT(session.outputs()[0].symbols, ElementsAre("batch", ""));
}

TEST(Session, LoadsTheSameModelFromAFileAndFromMemory) {
  const ModelBuilder model = perceptron();
  const std::string path = ::testing::TempDir() + "/session_test.onnx";
  model.save(path);
  const Tensor x = random_input({3, 24}, 7);
  const Session from_memory = model.load(with_threads(1));
  const Session from_file = Session::load(path, with_threads(1));
  std::remove(path.c_str());  // what the session needs of it is mapped
  EXPECT_TRUE(same_bits(run_one(from_memory, x)[0], run_one(from_file, x)[0]));
}

TEST(Session, ComputesWhatPlainLoopsCompute) {
  const Session session = two_inputs().load(with_threads(1));
  const std::vector<Tensor> inputs = two_inputs_tensors(5);
  const std::vector<Tensor> outputs = session.run(inputs);
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_THAT(outputs[0].dims(), ElementsAre(5, 4));
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(outputs[0].data<float>()[i], inputs[0].data<float>()[i] * inputs[1].data<float>()[i / 4]) << i;
}

TEST(Session, TakesInputsByNameInAnyOrder) {
  const Session session = two_inputs().load(with_threads(1));
  const std::vector<Tensor> inputs = two_inputs_tensors(2);
  const std::vector<NamedTensor> named{{"count", inputs[2]}, {"scale", inputs[1]}, {"x", inputs[0]}};
  EXPECT_TRUE(same_bits(session.run(named)[0], session.run(inputs)[0]));
}

TEST(Session, WritesIntoTheCallersBuffers) {
  const Session session = perceptron().load(with_threads(2));
  const Tensor x = random_input({6, 24}, 3);
  std::vector<Tensor> results{Tensor(DType::f32, {6, 10})};
  const void* buffer = results[0].raw();
  session.run_into(std::span(&x, 1), results);
  EXPECT_EQ(results[0].raw(), buffer);
  EXPECT_TRUE(same_bits(results[0], run_one(session, x)[0]));
}

TEST(Session, RefusesBuffersThatDoNotFit) {
  const Session session = perceptron().load(with_threads(1));
  const Tensor x = random_input({6, 24}, 3);
  const auto run_into = [&](std::vector<Tensor> results) {
    return error_of([&] { session.run_into(std::span(&x, 1), results); });
  };
  EXPECT_THAT(run_into({}), AllOf(HasSubstr("1 outputs"), HasSubstr("0 buffers")));
  EXPECT_THAT(run_into({Tensor()}), AllOf(HasSubstr("output 'Softmax_4'"), HasSubstr("undefined")));
  EXPECT_THAT(run_into({Tensor(DType::f32, {5, 10})}), AllOf(HasSubstr("5x10"), HasSubstr("6,10")));
  EXPECT_THAT(run_into({Tensor(DType::f64, {6, 10})}), AllOf(HasSubstr("float64"), HasSubstr("float32")));
}

TEST(Session, TakesAnotherBatchSizeAtAnyTime) {
  const Session session = conv_net().load(with_threads(2));
  const Tensor all = random_input({5, 3, 18, 14}, 11);
  const std::vector<Tensor> whole = run_one(session, all);
  const int64_t image = 3 * 18 * 14;
  for (int64_t batch : {1, 2, 3, 5, 1, 4}) {
    for (int64_t first = 0; first + batch <= 5; first += batch) {
      const Tensor part = Tensor::view(DType::f32, {batch, 3, 18, 14}, all.data<float>() + first * image);
      const Tensor result = run_one(session, part)[0];
      ASSERT_THAT(result.dims(), ElementsAre(batch, 10));
      for (int64_t i = 0; i < batch * 10; ++i)
        ASSERT_NEAR(result.data<float>()[i], whole[0].data<float>()[first * 10 + i], 1e-4)
            << batch << " from " << first;
    }
  }
}

TEST(Session, TakesMoreShapesThanItKeeps) {
  const Session session = perceptron().load(with_threads(1));
  const Tensor longest = random_input({40, 24}, 5);
  const Tensor whole = run_one(session, longest)[0];
  for (int round = 0; round < 2; ++round)
    for (int64_t rows = 1; rows <= 40; ++rows) {
      const Tensor result = run_one(session, Tensor::view(DType::f32, {rows, 24}, longest.raw()))[0];
      ASSERT_EQ(result.dims()[0], rows);
      for (int64_t i = 0; i < result.size(); ++i)
        ASSERT_NEAR(result.data<float>()[i], whole.data<float>()[i], 1e-6) << rows << " rows, element " << i;
    }
}

TEST(Session, RunsAnEmptyBatch) {
  const Session session = conv_net().load(with_threads(2));
  EXPECT_THAT(run_one(session, Tensor(DType::f32, {0, 3, 16, 16}))[0].dims(), ElementsAre(0, 10));
}

TEST(Session, GivesManyThreadsWhatItGivesOne) {
  const Session session = conv_net().load(with_threads(2));
  const std::vector<Dims> shapes{{1, 3, 16, 16}, {2, 3, 20, 12}, {1, 3, 33, 17}};
  std::vector<Tensor> inputs, expected;
  for (size_t i = 0; i < shapes.size(); ++i) {
    inputs.push_back(random_input(shapes[i], 20 + static_cast<unsigned>(i)));
    expected.push_back(run_one(conv_net().load(with_threads(2)), inputs[i])[0]);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 6; ++t)
    threads.emplace_back([&, t, mine = session] {  // copies share the model
      for (size_t i = 0; i < 30; ++i) {
        const size_t which = (t + i) % shapes.size();
        if (!same_bits(run_one(mine, inputs[which])[0], expected[which])) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Session, OutlivesEveryCopyButOne) {
  std::optional<Session> session = perceptron().load(with_threads(1));
  std::optional<Session> copy = session;
  session.reset();
  const Tensor result = run_one(*copy, random_input({2, 24}, 1))[0];
  copy.reset();  // results belong to the caller
  float sum = 0;
  for (float x : result.elements<float>()) sum += x;
  EXPECT_NEAR(sum, 2, 1e-5);  // two rows of a softmax
}

TEST(Session, NamesTheInputThatDoesNotFit) {
  const Session session = two_inputs().load(with_threads(1));
  const auto run = [&](size_t i, Tensor replacement) {
    std::vector<Tensor> inputs = two_inputs_tensors(2);
    inputs[i] = std::move(replacement);
    return error_of([&] { (void)session.run(inputs); });
  };
  EXPECT_THAT(run(0, Tensor(DType::f64, {2, 4})),
              AllOf(HasSubstr("'x'"), HasSubstr("float32[batch,4]"), HasSubstr("float64[2,4]")));
  EXPECT_THAT(run(0, Tensor(DType::f32, {2, 4, 1})), AllOf(HasSubstr("'x'"), HasSubstr("float32[2,4,1]")));
  EXPECT_THAT(run(0, Tensor(DType::f32, {2, 5})), AllOf(HasSubstr("'x'"), HasSubstr("float32[2,5]")));
  EXPECT_THAT(run(2, Tensor(DType::i64, {2})), AllOf(HasSubstr("'count'"), HasSubstr("int64[2,3]")));
  EXPECT_THAT(run(1, Tensor(DType::f32, {3, 1})),
              AllOf(HasSubstr("'scale'"), HasSubstr("'batch'"), HasSubstr("3"), HasSubstr("2")));
  EXPECT_THAT(run(1, Tensor()), AllOf(HasSubstr("'scale'"), HasSubstr("missing")));
}

TEST(Session, NamesTheInputsItHasWhenANameIsWrong) {
  const Session session = two_inputs().load(with_threads(1));
  const std::vector<Tensor> inputs = two_inputs_tensors(2);
  const std::vector<NamedTensor> wrong{{"y", inputs[0]}, {"scale", inputs[1]}, {"count", inputs[2]}};
  EXPECT_THAT(error_of([&] { (void)session.run(wrong); }),
              AllOf(HasSubstr("no input 'y'"), HasSubstr("'x', 'scale', 'count'")));
  const std::vector<NamedTensor> too_few{{"scale", inputs[1]}, {"count", inputs[2]}};
  EXPECT_THAT(error_of([&] { (void)session.run(too_few); }), AllOf(HasSubstr("'x'"), HasSubstr("missing")));
  EXPECT_THAT(error_of([&] { (void)session.run(std::span(inputs).first(2)); }),
              AllOf(HasSubstr("3 inputs"), HasSubstr("got 2")));
}

TEST(Session, IsUsableAfterAnError) {
  const Session session = two_inputs().load(with_threads(1));
  const std::vector<Tensor> inputs = two_inputs_tensors(2);
  const Tensor before = session.run(inputs)[0];
  (void)error_of([&] { (void)session.run(std::span(inputs).first(1)); });
  EXPECT_TRUE(same_bits(session.run(inputs)[0], before));
}

TEST(Session, RefusesOptionsThatMeanNothing) {
  SessionOptions options = with_threads(-1);
  EXPECT_THAT(error_of([&] { (void)perceptron().load(options); }), AllOf(HasSubstr("threads"), HasSubstr("-1")));
  options = with_threads(1);
  options.disabled_passes = {"fuse-epilogue", "make-it-fast"};
  EXPECT_THAT(error_of([&] { (void)perceptron().load(options); }), HasSubstr("'make-it-fast'"));
}

TEST(Session, RefusesWhatIsNotAModel) {
  EXPECT_THAT(error_of([] { (void)Session::load("/nowhere/model.onnx"); }, ErrorCode::io),
              HasSubstr("/nowhere/model.onnx"));
  const std::string bytes = perceptron().bytes();
  for (size_t keep : {size_t{0}, size_t{1}, bytes.size() / 3, bytes.size() - 1})
    EXPECT_THROW((void)Session::load(std::as_bytes(std::span(bytes).first(keep)), "", with_threads(1)), Error) << keep;
}

TEST(Session, GivesTheSameBitsOnEveryRun) {
  for (int threads : {1, 2}) {
    const Session session = conv_net().load(with_threads(threads));
    const Tensor x = random_input({2, 3, 24, 24}, 9);
    const Tensor first = run_one(session, x)[0];
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(same_bits(run_one(session, x)[0], first)) << threads << " threads, run " << i;
    EXPECT_TRUE(same_bits(run_one(conv_net().load(with_threads(threads)), x)[0], first)) << "another load";
  }
}

TEST(Session, ProfilesTheSameRun) {
  const Session session = perceptron().load(with_threads(1));
  const Tensor x = random_input({4, 24}, 2);
  Profile profile;
  const std::vector<Tensor> results = session.run_profiled(std::span(&x, 1), profile);
  EXPECT_TRUE(same_bits(results[0], run_one(session, x)[0]));
  ASSERT_FALSE(profile.steps.empty());
  int64_t at = 0;
  for (const StepTime& step : profile.steps) {
    EXPECT_THAT(step.node, Not(::testing::IsEmpty()));
    EXPECT_GE(step.begin_ns, at) << "steps run one after another";
    EXPECT_GE(step.end_ns, step.begin_ns);
    at = step.end_ns;
  }
  EXPECT_LE(at, profile.total_ns);
}

}  // namespace
}  // namespace lathe
