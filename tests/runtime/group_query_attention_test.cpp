// com.microsoft's GroupQueryAttention of sequences that have their own lengths, or a cache with room to grow: what it
// is expanded to against its plain reference, which runs at level 0.
#include <gtest/gtest.h>

#include <algorithm>

#include "lathe/error.h"
#include "lathe/profile.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

constexpr int64_t kHeads = 4, kSize = 8;

struct Case {
  const char* name;
  std::vector<int32_t> lengths;  // of each sequence, the new tokens included
  int64_t length, past, total;   // new tokens, rows of the cache, tokens of the longest sequence
  int64_t key_heads = 2;
  bool rotates = false;
  bool gives_positions = false;
  bool is_packed = false;
  std::vector<std::pair<const char*, int64_t>> attributes = {};
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
};

struct Model {
  std::string bytes;
  std::vector<Tensor> inputs;
};

// `is_open`: extents are known when it runs.
Model model_of(const Case& c, bool is_open = false) {
  constexpr int64_t kPositions = 64;
  ModelBuilder model;
  std::vector<Tensor> inputs;
  std::vector<std::string> names;
  const auto give = [&](const Tensor& tensor) {
    std::vector<testing::Extent> extents(tensor.dims().begin(), tensor.dims().end());
    for (size_t axis = 0; is_open && axis < extents.size(); ++axis) {
      // What tells how many heads there are is known.
      if (names.size() > 2 || axis < 2)
        extents[axis] = ("x" + std::to_string(names.size()) + "_" + std::to_string(axis)).c_str();
    }
    names.push_back(model.input("x" + std::to_string(names.size()), extents, tensor.dtype()));
    inputs.push_back(tensor);
  };
  const int64_t shared = c.key_heads * kSize;
  give(random_input({c.batch(), c.length, kHeads * kSize + (c.is_packed ? 2 * shared : 0)}, 1));
  for (const unsigned seed : {2U, 3U}) {
    if (c.is_packed) names.emplace_back();
    if (!c.is_packed) give(random_input({c.batch(), c.length, shared}, seed));
  }
  for (const unsigned seed : {4U, 5U}) give(random_input({c.batch(), c.key_heads, c.past, kSize}, seed));
  std::vector<int32_t> last;
  for (const int32_t length : c.lengths) last.push_back(length - 1);
  give(Tensor::from<int32_t>({c.batch()}, std::span<const int32_t>(last)));
  names.push_back(model.weight(Tensor::scalar<int32_t>(static_cast<int32_t>(c.total))));
  if (c.rotates) {
    for (const unsigned seed : {6U, 7U}) give(random_input({kPositions, kSize / 2}, seed));
  }
  if (c.gives_positions) {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < c.batch() * c.length; ++i) positions.push_back(i * 7 % kPositions);
    give(Tensor::from<int64_t>({c.batch(), c.length}, std::span<const int64_t>(positions)));
  }
  auto node = model.node("GroupQueryAttention", names, 3);
  node.of_domain("com.microsoft").with("num_heads", kHeads).with("kv_num_heads", c.key_heads);
  node.with("do_rotary", int64_t{c.rotates});
  for (const auto& [name, value] : c.attributes) node.with(name, value);
  for (int i = 0; i < 3; ++i) model.output(node.result(i));
  return {model.bytes(21), std::move(inputs)};
}

Session load(const Model& model, int level, int threads = 1) {
  return Session::load(std::as_bytes(std::span(model.bytes)), "", {.threads = threads, .optimization_level = level});
}

class GroupQueryAttentionOfSequences : public ::testing::TestWithParam<Case> {};

void expect_alike(const Case& c, bool is_open, int threads) {
  const Model model = model_of(c, is_open);
  Profile profile;
  const std::vector<Tensor> expected = load(model, 0).run(model.inputs),
                            got = load(model, 99, threads).run_profiled(model.inputs, profile);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(got[i].dims(), expected[i].dims());
    for (int64_t j = 0; j < got[i].size(); ++j)
      ASSERT_NEAR(got[i].data<float>()[j], expected[i].data<float>()[j], 2e-6) << "output " << i << ", element " << j;
  }
  const auto has = [&](const auto& claim) { return std::any_of(profile.steps.begin(), profile.steps.end(), claim); };
  EXPECT_FALSE(has([](const auto& step) { return step.kernel == "reference"; }));
  EXPECT_TRUE(has([](const auto& step) { return step.op.find("Softmax+MatMul") != std::string::npos; }));
  EXPECT_EQ(has([](const auto& step) { return step.kernel.starts_with("rotary"); }), c.rotates);
}

TEST_P(GroupQueryAttentionOfSequences, IsTheSameExpandedAndByItsReference) {
  for (const bool is_open : {false, true}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << (is_open ? "open extents, " : "") << threads << " threads");
      expect_alike(GetParam(), is_open, threads);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, GroupQueryAttentionOfSequences,
    ::testing::Values(
        Case{.name = "one_token_each", .lengths = {6, 3, 1}, .length = 1, .past = 5, .total = 6},
        Case{.name = "own_keys", .lengths = {6, 3}, .length = 1, .past = 5, .total = 6, .key_heads = 4},
        Case{.name = "room_to_grow", .lengths = {6, 3}, .length = 1, .past = 20, .total = 6},
        Case{.name = "one_sequence_with_room", .lengths = {6}, .length = 1, .past = 20, .total = 6},
        Case{.name = "first_prompt", .lengths = {5, 2}, .length = 5, .past = 0, .total = 5},
        Case{.name = "first_prompt_with_room", .lengths = {5, 2}, .length = 5, .past = 9, .total = 5, .rotates = true},
        Case{.name = "several_tokens", .lengths = {9, 4, 2}, .length = 3, .past = 6, .total = 9, .rotates = true},
        Case{.name = "windowed",
             .lengths = {9, 4},
             .length = 1,
             .past = 8,
             .total = 9,
             .attributes = {{"local_window_size", 3}}},
        Case{.name = "windowed_prompt",
             .lengths = {9, 2},
             .length = 9,
             .past = 0,
             .total = 9,
             .rotates = true,
             .attributes = {{"local_window_size", 3}}},
        Case{.name = "packed",
             .lengths = {3, 6},
             .length = 1,
             .past = 5,
             .total = 6,
             .rotates = true,
             .is_packed = true},
        Case{.name = "given_positions",
             .lengths = {3, 6},
             .length = 1,
             .past = 5,
             .total = 6,
             .rotates = true,
             .gives_positions = true},
        Case{.name = "neighbouring_pairs",
             .lengths = {3, 6},
             .length = 2,
             .past = 5,
             .total = 6,
             .rotates = true,
             .attributes = {{"rotary_interleaved", 1}}}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(GroupQueryAttentionLengths, RefusesLengthsThatDoNotFit) {
  for (const int32_t wrong : {0, 7}) {
    const Model model = model_of({.name = "wrong", .lengths = {6, wrong}, .length = 1, .past = 20, .total = 6});
    for (const int level : {0, 99}) EXPECT_THROW(load(model, level).run(model.inputs), Error) << wrong;
  }
}

}  // namespace
}  // namespace lathe
