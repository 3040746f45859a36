// Decoders in branches and loops: their caches grow inside of a body, at every length with the reference's results.
#include <gtest/gtest.h>

#include <map>

#include "src/runtime/session_state.h"
#include "src/runtime/staged_graph.h"
#include "tests/model_builder.h"
#include "tests/runtime/expect_results.h"

namespace lathe {
namespace {

using testing::expect_near;
using testing::GraphBuilder;
using testing::ModelBuilder;
using testing::random_input;
using testing::run_into_buffers;

constexpr int64_t kWidth = 32;
constexpr int kLayers = 4;

struct Decoded {
  std::string x;
  std::vector<std::string> caches;
};

// Layers of attention and a dense block over x [batch, n, width]; `past`: caches [batch, past, width], a key and a
// value for each layer, or none. Every body made this way has the same weights.
Decoded decode(GraphBuilder& body, std::string x, const std::vector<std::string>& past) {
  const auto dense = [&](const std::string& from, int64_t rows, int64_t columns) -> std::string {
    return body.node("MatMul", {from, body.random_weight({rows, columns}, 0.3F)});
  };
  Decoded decoded;
  const auto cached = [&](const std::string& made) -> std::string {
    const size_t number = decoded.caches.size();
    decoded.caches.push_back(
        past.empty() ? made : body.node("Concat", {past[number], made}).with("axis", int64_t{1}).result());
    return decoded.caches.back();
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string query = dense(x, kWidth, kWidth);
    const std::string keys = cached(dense(x, kWidth, kWidth)), values = cached(dense(x, kWidth, kWidth));
    const std::string scores =
        body.node("MatMul", {query, body.node("Transpose", {keys}).with("perm", {0, 2, 1}).result()});
    const std::string attended = body.node("MatMul", {body.node("Softmax", {scores}).with("axis", -1), values});
    const std::string sum = body.node("Add", {x, dense(attended, kWidth, kWidth)});
    const std::string active = body.node("Relu", {dense(sum, kWidth, 2 * kWidth)});
    x = body.node("Tanh", {body.node("Add", {sum, dense(active, 2 * kWidth, kWidth)})});
  }
  decoded.x = x;
  return decoded;
}

std::vector<std::string> past_inputs(GraphBuilder& model) {
  std::vector<std::string> past;
  for (int i = 0; i < 2 * kLayers; ++i)
    past.push_back(model.input("past" + std::to_string(i), {"batch", "past", kWidth}));
  return past;
}

// One file for the first run and the later ones: an If over `use_cache`, with work before and behind it.
ModelBuilder merged_decoder() {
  ModelBuilder model;
  const std::string tokens = model.input("tokens", {"batch", "n", kWidth});
  const std::vector<std::string> past = past_inputs(model);
  const std::string use_cache = model.input("use_cache", {1}, DType::boolean);
  const std::string x = model.node("Mul", {tokens, model.weight(Tensor::scalar(0.5F))});
  GraphBuilder with_past("with/"), without("without/");
  for (auto [body, caches] : {std::pair(&with_past, past), std::pair(&without, std::vector<std::string>{})}) {
    const Decoded decoded = decode(*body, x, caches);
    body->output(decoded.x);
    for (const std::string& cache : decoded.caches) body->output(cache);
  }
  auto branch = model.node("If", {use_cache}, 1 + 2 * kLayers);
  branch.with_body("then_branch", with_past.graph()).with_body("else_branch", without.graph());
  model.output(model.node("Neg", {branch.result()}));
  for (int i = 0; i < 2 * kLayers; ++i) model.output(branch.result(1 + i));
  return model;
}

SessionOptions options_of(int level, int threads = 1) {
  SessionOptions options;
  options.optimization_level = level;
  options.threads = threads;
  options.use_cache = false;
  return options;
}

std::vector<Tensor> inputs_of(const Tensor& tokens, const std::vector<Tensor>& past) {
  std::vector<Tensor> inputs{tokens};
  // Callers hand over something where the branch does not look.
  for (size_t i = 0; i < 2 * kLayers; ++i)
    inputs.push_back(past.empty() ? random_input({tokens.dims()[0], 1, kWidth}, 9) : past[i]);
  inputs.push_back(Tensor::from<bool>({1}, {!past.empty()}));
  return inputs;
}

// The runner of a body of the first node that has one.
std::shared_ptr<GraphRunner> runner_of_body(const GraphRunner& runner, const char* attribute) {
  for (const NodeId id : runner.graph().order())
    if (const auto body = runner.graph().node(id).attributes.get_graph(attribute))
      return runner.bodies().runner_of(*body);
  return nullptr;
}

class MergedDecoder : public ::testing::TestWithParam<std::tuple<int64_t, int>> {};

TEST_P(MergedDecoder, GivesTheReferenceAtEveryLength) {
  const auto [batch, threads] = GetParam();
  const ModelBuilder model = merged_decoder();
  const Session session = model.load(options_of(99, threads)), reference = model.load(options_of(0));
  unsigned seed = 0;
  for (const int64_t prompt : {3, 5, 3, 7}) {
    std::vector<Tensor> past;
    for (int token = 0; token < 12; ++token) {
      SCOPED_TRACE("prompt " + std::to_string(prompt) + " token " + std::to_string(token));
      const std::vector<Tensor> inputs =
          inputs_of(random_input({batch, token == 0 ? prompt : 1, kWidth}, ++seed), past);
      const std::vector<Tensor> got = session.run(inputs);
      expect_near(got, reference.run(inputs));
      if (HasFatalFailure()) return;
      past.assign(got.begin() + 1, got.end());
    }
  }
  GraphRunner& runner = *session.state()->runner;
  ASSERT_NE(runner.branch_cut(), nullptr);
  const auto branch = runner_of_body(runner, "then_branch");
  std::map<std::string, Tensor> values;
  const std::vector<Tensor> next = inputs_of(random_input({batch, 1, kWidth}, 1),
                                             std::vector<Tensor>(2 * kLayers, random_input({batch, 40, kWidth}, 2)));
  for (size_t i = 0; i < next.size(); ++i) values[session.inputs()[i].name] = next[i];
  std::vector<Tensor> captured;
  for (const ValueId id : branch->graph().inputs) {
    const auto found = values.find(branch->graph().value(id).name);
    captured.push_back(found != values.end() ? found->second : next[0]);
  }
  const auto staged = branch->staged_for(captured);
  ASSERT_NE(staged, nullptr);
  EXPECT_LE(staged->counts().open_runners, 2U);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MergedDecoder,
                         ::testing::Combine(::testing::Values(int64_t{1}, int64_t{3}), ::testing::Values(1, 2)));

TEST(BranchCut, WritesIntoBuffersAndRefusesOthers) {
  const ModelBuilder model = merged_decoder();
  const Session session = model.load(options_of(99));
  std::vector<Tensor> past;
  for (int token = 0; token < 6; ++token) {
    const std::vector<Tensor> inputs = inputs_of(random_input({2, 1, kWidth}, 5), past);
    const std::vector<Tensor> made = run_into_buffers(session, inputs);
    past.assign(made.begin() + 1, made.end());
  }
}

TEST(BranchCut, RefusesCachesThatDoNotFitTheTokens) {
  ModelBuilder model;
  const std::string tokens = model.input("tokens", {"batch", "n", kWidth});
  std::vector<std::string> past;
  for (int i = 0; i < 2 * kLayers; ++i)
    past.push_back(model.input("past" + std::to_string(i), {"other", "past", "width"}));
  GraphBuilder with_past("with/"), without("without/");
  with_past.output(decode(with_past, tokens, past).x);
  without.output(decode(without, tokens, {}).x);
  auto branch = model.node("If", {model.input("use_cache", {"any"}, DType::boolean)});
  model.output(branch.with_body("then_branch", with_past.graph()).with_body("else_branch", without.graph()));
  const Session session = model.load(options_of(99));
  const auto run = [&](int64_t batch, int64_t width, int64_t conditions) {
    std::vector<Tensor> inputs{random_input({2, 1, kWidth}, 1)};
    for (int i = 0; i < 2 * kLayers; ++i) inputs.push_back(random_input({batch, 4, width}, 2));
    inputs.emplace_back(DType::boolean, Dims{conditions});
    for (int64_t i = 0; i < conditions; ++i) inputs.back().mutable_data<bool>()[i] = true;
    return session.run(inputs);
  };
  ASSERT_NE(session.state()->runner->branch_cut(), nullptr);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(run(2, kWidth, 1).size(), 1U);
    EXPECT_THROW(run(3, kWidth, 1), Error);
    EXPECT_THROW(run(2, kWidth + 1, 1), Error);
    EXPECT_THROW(run(2, kWidth, 2), Error);
    EXPECT_THROW(run(2, kWidth, 0), Error);
  }
}

// Which branch is taken follows from a shape: one goes away when the shape is known, and the other is part of the
// whole.
TEST(BranchCut, IsNotMadeWhereShapesDecide) {
  ModelBuilder model;
  const std::string tokens = model.input("tokens", {"batch", "n", kWidth});
  const std::string rows = model.node("Size", {tokens});
  const std::string is_long = model.node("Greater", {rows, model.weight(Tensor::scalar(int64_t{4 * kWidth}))});
  GraphBuilder one("one/"), other("other/");
  one.output(decode(one, tokens, {}).x);
  other.output(other.node("Neg", {decode(other, tokens, {}).x}));
  auto branch = model.node("If", {is_long});
  model.output(branch.with_body("then_branch", one.graph()).with_body("else_branch", other.graph()));
  const Session session = model.load(options_of(99)), reference = model.load(options_of(0));
  for (int64_t n = 1; n < 9; ++n) {
    const std::vector<Tensor> inputs{random_input({1, n, kWidth}, 3)};
    expect_near(session.run(inputs), reference.run(inputs));
  }
  EXPECT_EQ(session.state()->runner->branch_cut(), nullptr);
}

// Branch upon branch, each on what the one before it made.
TEST(BranchCut, MayFollowOneAnother) {
  ModelBuilder model;
  std::string x = model.input("tokens", {"batch", "n", kWidth});
  for (int i = 0; i < 5; ++i) {
    const std::string name = std::to_string(i) + "/";
    const std::string sum = model.node("ReduceSum", {x}).with("keepdims", int64_t{0});
    const std::string is_positive = model.node("Greater", {sum, model.weight(Tensor::scalar(0.0F))});
    GraphBuilder one(name + "one/"), other(name + "other/");
    one.output(one.node("Neg", {decode(one, x, {}).x}));
    other.output(decode(other, x, {}).x);
    auto branch = model.node("If", {is_positive});
    x = model.node("Mul", {branch.with_body("then_branch", one.graph()).with_body("else_branch", other.graph()),
                           model.weight(Tensor::scalar(1.5F))});
  }
  model.output(x);
  const Session session = model.load(options_of(99)), reference = model.load(options_of(0));
  for (unsigned seed = 0; seed < 12; ++seed) {
    const std::vector<Tensor> inputs{random_input({1, 1 + seed % 5, kWidth}, seed)};
    expect_near(session.run(inputs), reference.run(inputs));
  }
  EXPECT_NE(session.state()->runner->branch_cut(), nullptr);
}

// A Loop that generates: the caches are carried from one iteration to the next.
TEST(GrowingLoop, GivesTheReferenceForAnyNumberOfTokens) {
  ModelBuilder model;
  std::vector<std::string> carried{model.input("trips", {}, DType::i64), "",
                                   model.input("tokens", {"batch", 1, kWidth})};
  for (const std::string& past : past_inputs(model)) carried.push_back(past);
  GraphBuilder body("body/");
  body.input("iteration", {}, DType::i64);
  const std::string condition = body.input("condition", {}, DType::boolean);
  const std::string x = body.input("x", {"batch", 1, kWidth});
  std::vector<std::string> past;
  for (int i = 0; i < 2 * kLayers; ++i)
    past.push_back(body.input("state" + std::to_string(i), {"batch", "any", kWidth}));
  const Decoded decoded = decode(body, x, past);
  body.output(body.node("Identity", {condition}), DType::boolean);
  body.output(decoded.x);
  for (const std::string& cache : decoded.caches) body.output(cache);
  body.output(body.node("Identity", {decoded.x}));
  auto loop = model.node("Loop", carried, 2 + 2 * kLayers);
  loop.with_body("body", body.graph());
  for (int i = 0; i < 2 + 2 * kLayers; ++i) model.output(loop.result(i));
  const Session session = model.load(options_of(99, 2)), reference = model.load(options_of(0));
  for (const int64_t trips : {20, 33, 0, 1, 20}) {
    SCOPED_TRACE("trips " + std::to_string(trips));
    std::vector<Tensor> inputs{Tensor::scalar(trips), random_input({2, 1, kWidth}, 4)};
    for (int i = 0; i < 2 * kLayers; ++i) inputs.push_back(random_input({2, 1 + trips % 3, kWidth}, 5));
    expect_near(session.run(inputs), reference.run(inputs));
    if (HasFatalFailure()) return;
  }
  const auto runner = runner_of_body(*session.state()->runner, "body");
  std::vector<Tensor> next{Tensor::scalar(int64_t{0}), Tensor::scalar(true), random_input({2, 1, kWidth}, 4)};
  for (int i = 0; i < 2 * kLayers; ++i) next.push_back(random_input({2, 50, kWidth}, 5));
  ASSERT_EQ(runner->graph().inputs.size(), next.size());
  EXPECT_NE(runner->staged_for(next), nullptr);
}

}  // namespace
}  // namespace lathe
