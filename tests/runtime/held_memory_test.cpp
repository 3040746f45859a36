// What a loaded model holds: weights and what is packed from them do not stay side by side.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "src/runtime/session_state.h"
#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

SessionOptions quiet(int threads = 1) {
  SessionOptions options;
  options.threads = threads;
  options.use_cache = false;
  return options;
}

Tensor run_one(const Session& session, const Tensor& input) { return session.run(std::span(&input, 1))[0]; }

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dims() == b.dims() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

// A convolution and its normalization, whose weights are folded into tensors of their own, and two products of one
// constant, which is read as it is by the sum between them.
ModelBuilder folded_net(bool has_open_batch) {
  ModelBuilder model;
  const std::string x = has_open_batch ? model.input("x", {"batch", 64, 8, 8}) : model.input("x", {1, 64, 8, 8});
  const std::string conv =
      model.node("Conv", {x, model.random_weight({64, 64, 3, 3}, 0.05F)}).with("pads", {1, 1, 1, 1});
  const std::string normal = model.node(
      "BatchNormalization", {conv, model.random_weight({64}), model.random_weight({64}), model.random_weight({64}),
                             model.weight(Tensor::from<float>({64}, std::vector<float>(64, 0.5F)))});
  const std::string rows = model.node("Reshape", {model.node("Relu", {normal}), model.longs({-1, 64})});
  const std::string square = model.random_weight({64, 64}, 0.2F);
  const std::string once = model.node("MatMul", {rows, square});
  model.output(model.node("MatMul", {once, square}));
  return model;
}

struct Held {
  std::vector<std::weak_ptr<const void>> large;
  size_t alive() const {
    return static_cast<size_t>(
        std::count_if(large.begin(), large.end(), [](const auto& constant) { return !constant.expired(); }));
  }
};

// The constants of a model that were made at load and that no file holds.
Held made_at_load(const Session& session) {
  Held held;
  const Graph& graph = session.state()->runner->graph();
  for (size_t v = 0; v < graph.value_count(); ++v) {
    const Tensor& constant = graph.value(static_cast<ValueId>(v)).constant;
    if (constant.defined() && constant.bytes() >= size_t{64} * 64 * 9 * 4) held.large.push_back(constant.owner());
  }
  return held;
}

TEST(HeldMemory, LetsFoldedWeightsGoOnceTheyArePacked) {
  const Session kept = folded_net(false).load(quiet()), session = folded_net(false).load(quiet());
  kept.state()->runner->keep_constants();
  const Held of_kept = made_at_load(kept), held = made_at_load(session);
  ASSERT_FALSE(held.large.empty());
  const Tensor x = random_input({1, 64, 8, 8}, 3);
  const Tensor expected = run_one(kept, x);
  EXPECT_TRUE(same_bits(run_one(session, x), expected));
  EXPECT_EQ(of_kept.alive(), of_kept.large.size());
  EXPECT_EQ(held.alive(), 0u);
  EXPECT_TRUE(same_bits(run_one(session, x), expected));
}

TEST(HeldMemory, RunsOtherShapesAfterTheFirst) {
  const Session open = folded_net(true).load(quiet());
  const Held held = made_at_load(open);
  for (const int64_t batch : {1, 3, 2, 1}) {
    const Tensor x = random_input({batch, 64, 8, 8}, 5);
    const Session fresh = folded_net(true).load(quiet());
    EXPECT_TRUE(same_bits(run_one(open, x), run_one(fresh, x))) << "batch " << batch;
  }
  EXPECT_EQ(held.alive(), held.large.size()) << "the next shape may pack them in another way";
}

TEST(HeldMemory, RefusesAnotherShapeThanTheDeclaredAndGoesOn) {
  const Session session = folded_net(false).load(quiet());
  const Tensor x = random_input({1, 64, 8, 8}, 3), wide = random_input({2, 64, 8, 8}, 3);
  const Tensor first = run_one(session, x);
  EXPECT_THROW(run_one(session, wide), Error);
  EXPECT_TRUE(same_bits(run_one(session, x), first));
  // Who goes round the session's check finds no constants, and is told so.
  EXPECT_THROW((void)session.state()->runner->part_for(std::span(&wide, 1)), Error);
  EXPECT_TRUE(same_bits(run_one(session, x), first));
}

TEST(HeldMemory, IsSafeWhenThreadsRunTheFirstTimeTogether) {
  const Tensor x = random_input({1, 64, 8, 8}, 3);
  const Tensor expected = run_one(folded_net(false).load(quiet()), x);
  const Session session = folded_net(false).load(quiet());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) right += same_bits(run_one(session, x), expected);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 20);
}

TEST(HeldMemory, KeepsAConstantThatIsReadAsItIs) {
  ModelBuilder model;
  const std::string x = model.input("x", {64, 64});
  const std::string square = model.random_weight({64, 64}, 0.2F);
  model.output(model.node("Mul", {model.node("MatMul", {x, square}), square}));
  const Session session = model.load(quiet());
  const Tensor input = random_input({64, 64}, 7);
  const Tensor first = run_one(session, input);
  SessionOptions plain = quiet();
  plain.optimization_level = 0;
  const Session kept = model.load(plain);
  kept.state()->runner->keep_constants();
  const Tensor expected = run_one(kept, input);
  for (int64_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(first.data<float>()[i], expected.data<float>()[i], 1e-4);
}

TEST(PackedWeights, DoesNotTakeAConstantForAnotherThatLayThereBefore) {
  static const float place[4] = {};
  PackedWeights packed;
  const auto pack = [](float value) { return [value] { return Tensor::scalar(value); }; };
  const auto at_place = [] { return Tensor::view(DType::f32, {4}, place, std::make_shared<int>(0)); };
  Tensor first = at_place();
  EXPECT_EQ(*packed.get(first, "a", pack(1)).data<float>(), 1);
  EXPECT_EQ(*packed.get(first, "a", pack(2)).data<float>(), 1);
  EXPECT_EQ(*packed.get(first, "b", pack(3)).data<float>(), 3);
  EXPECT_TRUE(packed.contains(first));
  const Tensor second = at_place();
  EXPECT_FALSE(packed.contains(second));
  first = Tensor();
  EXPECT_EQ(*packed.get(second, "a", pack(4)).data<float>(), 4);
  EXPECT_EQ(*packed.get(second, "b", pack(5)).data<float>(), 5);
}

TEST(PackedWeights, LetsGoOfWhatWasPackedFromAConstantThatIsGone) {
  PackedWeights packed;
  Tensor first(DType::f32, {4}), second(DType::f32, {8});
  (void)packed.get(first, "a", [] { return Tensor(DType::f32, {100}); });
  EXPECT_EQ(packed.bytes(), 400u);
  first = Tensor();
  (void)packed.get(second, "a", [] { return Tensor(DType::f32, {50}); });
  EXPECT_EQ(packed.bytes(), 200u);
}

}  // namespace
}  // namespace lathe
