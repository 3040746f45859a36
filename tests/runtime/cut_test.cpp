// Models whose shapes depend on data: the graph is cut where they arise, and If and Loop run their bodies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lathe/profile.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using testing::GraphBuilder;
using testing::ModelBuilder;
using testing::random_input;

SessionOptions options_of(int threads) {
  SessionOptions options;
  options.threads = threads;
  options.use_cache = false;
  return options;
}

std::vector<float> list(const Tensor& tensor) {
  return {tensor.elements<float>().begin(), tensor.elements<float>().end()};
}

// y = 2 * (elements of x above 0), flat: NonZero makes a shape that nothing foretells.
ModelBuilder positives() {
  ModelBuilder model;
  const std::string x = model.input("x", {"n"});
  const std::string is_positive = model.node("Greater", {x, model.weight(Tensor::scalar(0.0F))});
  const std::string where = model.node("NonZero", {is_positive});
  const std::string indices = model.node("Squeeze", {where, model.longs({0})});
  const std::string kept = model.node("Gather", {x, indices});
  model.output(model.node("Mul", {kept, model.weight(Tensor::scalar(2.0F))}));
  return model;
}

std::vector<float> doubled_positives(const Tensor& x) {
  std::vector<float> kept;
  for (float each : x.elements<float>())
    if (each > 0) kept.push_back(2 * each);
  return kept;
}

TEST(CutGraph, GivesAnotherShapeForOtherData) {
  for (int level : {0, 99}) {
    SessionOptions options = options_of(2);
    options.optimization_level = level;
    const Session session = positives().load(options);
    for (unsigned seed = 0; seed < 20; ++seed) {
      const Tensor x = random_input({1 + static_cast<int64_t>(seed % 4) * 13}, seed);
      EXPECT_EQ(list(session.run(std::span(&x, 1))[0]), doubled_positives(x)) << "seed " << seed << " level " << level;
    }
  }
}

TEST(CutGraph, MayGiveAnEmptyResult) {
  const Session session = positives().load(options_of(1));
  const Tensor x = Tensor::from<float>({3}, {-1, 0, -2});
  EXPECT_THAT(session.run(std::span(&x, 1))[0].dims(), ElementsAre(0));
}

// Each cut within the one before it would take all memory, and the stack.
TEST(CutGraph, MayBeCutThousandsOfTimes) {
  ModelBuilder model;
  std::string last = model.input("x", {"n"});
  for (int i = 0; i < 3000; ++i) {
    const std::string each = model.node("Unique", {last});
    last = model.node("Neg", {each});
  }
  model.output(last);
  const Session session = model.load(options_of(1));
  const Tensor x = Tensor::from<float>({5}, {3, 1, 2, 1, 3});
  for (int run = 0; run < 2; ++run) EXPECT_EQ(list(session.run(std::span(&x, 1))[0]), (std::vector<float>{3, 2, 1}));
}

// y = 2 * x[:end] + 1, and the slice itself: a cut whose shape depends on one number.
ModelBuilder front_rows() {
  ModelBuilder model;
  const std::string x = model.input("x", {"n", 48}), end = model.input("end", {1}, DType::i64);
  const std::string front = model.node("Slice", {x, model.longs({0}), end, model.longs({0})});
  model.output(front);
  model.output(model.node("Mul", {front, model.weight(Tensor::scalar(2.0F))}));
  return model;
}

std::vector<float> front_of(const Tensor& x, int64_t rows) {
  const std::span<const float> all = x.elements<float>();
  return {all.begin(), all.begin() + rows * 48};
}

TEST(CutGraph, FollowsANumberThatSaysHowMuch) {
  const Session session = front_rows().load(options_of(2));
  // More sizes than are kept, few and many bytes, each met again.
  for (int round = 0; round < 3; ++round) {
    for (const int64_t rows : {40, 3000}) {
      const Tensor x = random_input({rows, 48}, static_cast<unsigned>(rows));
      for (int64_t end = 0; end < 24; ++end) {
        const Tensor inputs[] = {x, Tensor::from<int64_t>({1}, {end})};
        std::vector<Tensor> given{Tensor(DType::f32, {end, 48}), Tensor(DType::f32, {end, 48})};
        session.run_into(inputs, given);
        const std::vector<Tensor> made = session.run(inputs);
        std::vector<float> expected = front_of(x, end);
        EXPECT_EQ(list(made[0]), expected) << rows << " rows to " << end;
        EXPECT_EQ(list(given[0]), expected) << rows << " rows to " << end;
        for (float& value : expected) value *= 2;
        EXPECT_EQ(list(made[1]), expected) << rows << " rows to " << end;
        EXPECT_EQ(list(given[1]), expected) << rows << " rows to " << end;
      }
    }
  }
}

TEST(CutGraph, RunsGeneratedCodeForANumberThatItMeetsAgain) {
  const Session session = front_rows().load(options_of(1));
  const Tensor inputs[] = {random_input({40, 48}, 3), Tensor::from<int64_t>({1}, {7})};
  Profile first, again;
  session.run_profiled(inputs, first);
  session.run_profiled(inputs, again);
  EXPECT_EQ(first.steps.front().kernel, "reference");
  EXPECT_EQ(again.steps.front().kernel, "copy runs of 1344 bytes");
}

TEST(CutGraph, SaysWhatIsWrongWithANumberEachTime) {
  ModelBuilder model;
  const std::string x = model.input("x", {"n"}), shape = model.input("shape", {"rank"}, DType::i64);
  model.output(model.node("Expand", {x, shape}));
  const Session session = model.load(options_of(1));
  const Tensor wrong[] = {random_input({5}, 1), Tensor::from<int64_t>({2}, {2, 4})};
  const Tensor right[] = {random_input({5}, 1), Tensor::from<int64_t>({2}, {2, 5})};
  for (int round = 0; round < 3; ++round) {
    try {
      session.run(wrong);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("cannot expand 5 to 2x4"), std::string::npos) << error.what();
    }
    EXPECT_THAT(session.run(right)[0].dims(), ElementsAre(2, 5));
  }
}

TEST(CutGraph, TellsThatTheExtentIsOpen) {
  const Session session = positives().load(options_of(1));
  EXPECT_THAT(session.outputs()[0].dims, ElementsAre(-1));
}

TEST(CutGraph, WritesIntoBuffersThatFitTheData) {
  const Session session = positives().load(options_of(1));
  const Tensor x = Tensor::from<float>({3}, {5, -1, 6});
  std::vector<Tensor> results{Tensor(DType::f32, {2})};
  session.run_into(std::span(&x, 1), results);
  EXPECT_THAT(list(results[0]), ElementsAre(10, 12));
  results[0] = Tensor(DType::f32, {3});
  EXPECT_THROW(session.run_into(std::span(&x, 1), results), Error);
}

TEST(CutGraph, MayBeCutTwice) {
  ModelBuilder model;
  const std::string x = model.input("x", {"n"});
  std::string kept = x;
  for (float limit : {0.0F, 0.5F}) {
    const std::string above = model.node("Greater", {kept, model.weight(Tensor::scalar(limit))});
    const std::string where = model.node("Squeeze", {model.node("NonZero", {above}), model.longs({0})});
    kept = model.node("Gather", {kept, where}).result();
  }
  model.output(kept);
  const std::string square = model.node("Mul", {x, x});  // needs no data-dependent shape
  model.output(square);
  const Session session = model.load(options_of(2));
  const Tensor input = random_input({50}, 4);
  const std::vector<Tensor> results = session.run(std::span(&input, 1));
  std::vector<float> expected, squares;
  for (float each : input.elements<float>()) {
    if (each > 0.5F) expected.push_back(each);
    squares.push_back(each * each);
  }
  EXPECT_EQ(list(results[0]), expected);
  EXPECT_EQ(list(results[1]), squares);
}

TEST(CutGraph, PassesInputsAndConstantsThroughToOutputs) {
  ModelBuilder model = positives();
  model.output("x");
  model.output(model.weight(Tensor::from<float>({2}, {7, 8})));
  const Session session = model.load(options_of(1));
  const Tensor x = Tensor::from<float>({3}, {5, -1, 6});
  const std::vector<Tensor> results = session.run(std::span(&x, 1));
  EXPECT_THAT(list(results[0]), ElementsAre(10, 12));
  EXPECT_THAT(list(results[1]), ElementsAre(5, -1, 6));
  EXPECT_THAT(list(results[2]), ElementsAre(7, 8));
}

// if (sum(x) > 0) x + x else the first row of x: the branches' shapes differ.
ModelBuilder branches() {
  ModelBuilder model;
  const std::string x = model.input("x", {"rows", 3});
  const std::string sum = model.node("ReduceSum", {x}).with("keepdims", int64_t{0});
  const std::string condition = model.node("Greater", {sum, model.weight(Tensor::scalar(0.0F))});
  GraphBuilder twice("then_"), first("else_");
  twice.output(twice.node("Add", {x, x}));
  first.output(first.node("Gather", {x, first.longs({0})}).with("axis", int64_t{0}));
  const std::string chosen =
      model.node("If", {condition}).with_body("then_branch", twice.graph()).with_body("else_branch", first.graph());
  model.output(model.node("Neg", {chosen}));
  return model;
}

TEST(CutGraph, TakesEitherBranchOfAnIf) {
  const Session session = branches().load(options_of(2));
  const Tensor positive = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, -6});
  const Tensor negative = Tensor::from<float>({2, 3}, {-1, -2, -3, 4, -5, -6});
  for (int round = 0; round < 3; ++round) {
    const Tensor doubled = session.run(std::span(&positive, 1))[0];
    EXPECT_THAT(doubled.dims(), ElementsAre(2, 3));
    EXPECT_THAT(list(doubled), ElementsAre(-2, -4, -6, -8, -10, 12));
    const Tensor row = session.run(std::span(&negative, 1))[0];
    EXPECT_THAT(row.dims(), ElementsAre(1, 3));
    EXPECT_THAT(list(row), ElementsAre(1, 2, 3));
  }
}

// Doubles x until its sum is above the limit; also gives every intermediate sum (scan output, one per trip).
ModelBuilder doubling_loop() {
  ModelBuilder model;
  const std::string x = model.input("x", {"n"}), limit = model.input("limit", {});
  GraphBuilder body("body_");
  body.input("body_trip", {}, DType::i64);
  body.input("body_go_on", {}, DType::boolean);
  const std::string state = body.input("body_state", {"n"});
  const std::string doubled = body.node("Add", {state, state});
  const std::string sum = body.node("ReduceSum", {doubled}).with("keepdims", int64_t{0});
  body.output(body.node("Less", {sum, limit}), DType::boolean);
  body.output(doubled);
  body.output(sum);
  const std::string start = model.weight(Tensor::from<bool>({}, {true}));
  const testing::NodeBuilder loop =
      model.node("Loop", {model.weight(Tensor::scalar<int64_t>(100)), start, x}, 2).with_body("body", body.graph());
  model.output(loop.result(0));
  model.output(model.node("Neg", {loop.result(1)}));
  return model;
}

TEST(CutGraph, RunsALoopAsOftenAsTheDataSay) {
  const Session session = doubling_loop().load(options_of(2));
  for (int trips : {1, 2, 5, 9}) {
    const std::vector<Tensor> inputs{Tensor::from<float>({3}, {1, 2, 1}),
                                     Tensor::scalar<float>(4.0F * static_cast<float>(1 << trips))};
    const std::vector<Tensor> results = session.run(inputs);
    const auto factor = static_cast<float>(1 << trips);
    EXPECT_THAT(list(results[0]), ElementsAre(factor, 2 * factor, factor)) << trips;
    ASSERT_THAT(results[1].dims(), ElementsAre(trips));
    for (int i = 0; i < trips; ++i) EXPECT_EQ(results[1].data<float>()[i], -4.0F * static_cast<float>(2 << i));
  }
}

TEST(CutGraph, ShowsTheCutInAProfile) {
  const Session session = positives().load(options_of(1));
  const Tensor x = Tensor::from<float>({3}, {5, -1, 6});
  Profile profile;
  (void)session.run_profiled(std::span(&x, 1), profile);
  int cuts = 0;
  for (const StepTime& step : profile.steps) cuts += step.op == "NonZero" && step.kernel == "reference" ? 1 : 0;
  EXPECT_EQ(cuts, 1);
}

}  // namespace
}  // namespace lathe
