// ai.onnx's Attention: what it is expanded to against its plain reference, which runs at level 0 and which ONNX's own
// tests hold to the definition.
#include <gtest/gtest.h>

#include "lathe/profile.h"
#include "src/base/half.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

struct Case {
  const char* name;
  Dims query, key, value;
  int64_t past = 0;
  Dims mask = {};
  bool is_mask_bool = false;
  std::vector<int64_t> lengths = {};
  std::vector<std::pair<const char*, int64_t>> attributes = {};
  bool is_fused = true;  // to one node, with no matrix of scores
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

// Every third element is out; of row 0, all.
Tensor flags(const Dims& dims) {
  Tensor mask(DType::boolean, dims);
  for (int64_t i = 0; i < mask.size(); ++i) mask.mutable_data<bool>()[i] = i >= dims.back() && i % 3 != 0;
  return mask;
}

// Compares with the run without passes, and expects one step for scores and their sums, or not.
void expect_alike(const std::string& bytes, const std::vector<Tensor>& inputs, bool expects_fused) {
  const auto load = [&](int level) {
    return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 1, .optimization_level = level});
  };
  Profile profile;
  const std::vector<Tensor> expected = load(0).run(inputs), got = load(99).run_profiled(inputs, profile);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(got[i].dims(), expected[i].dims());
    for (int64_t j = 0; j < got[i].size(); ++j)
      ASSERT_NEAR(got[i].data<float>()[j], expected[i].data<float>()[j], 2e-6) << "output " << i << ", element " << j;
  }
  bool is_fused = false;
  for (const auto& step : profile.steps) is_fused = is_fused || step.op.find("Softmax+MatMul") != std::string::npos;
  EXPECT_EQ(is_fused, expects_fused);
}

class AttentionOperator : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionOperator, IsTheSameExpandedAndByItsReference) {
  const Case& c = GetParam();
  ModelBuilder model;
  std::vector<Tensor> inputs;
  std::vector<std::string> names;
  const auto give = [&](const std::string& name, const Tensor& tensor) {
    names.push_back(
        model.input(name, std::vector<testing::Extent>(tensor.dims().begin(), tensor.dims().end()), tensor.dtype()));
    inputs.push_back(tensor);
  };
  give("q", random_input(c.query, 1));
  give("k", random_input(c.key, 2));
  give("v", random_input(c.value, 3));
  if (c.mask.empty()) names.emplace_back();
  if (!c.mask.empty()) give("mask", c.is_mask_bool ? flags(c.mask) : random_input(c.mask, 4));
  for (int i = 0; i < 2; ++i) {
    if (c.past == 0) names.emplace_back();
    const Dims& now = i == 0 ? c.key : c.value;
    if (c.past > 0) give(i == 0 ? "past_k" : "past_v", random_input({now[0], now[1], c.past, now[3]}, 5));
  }
  if (!c.lengths.empty())
    give("lengths",
         Tensor::from<int64_t>({static_cast<int64_t>(c.lengths.size())}, std::span<const int64_t>(c.lengths)));
  while (names.back().empty()) names.pop_back();
  auto node = model.node("Attention", names, 3);
  for (const auto& [name, value] : c.attributes) node.with(name, value);
  for (int i = 0; i < 3; ++i) model.output(node.result(i));
  expect_alike(model.bytes(25), inputs, c.is_fused);
}

// Whether a mask is one for all heads or has one for each is known when it comes.
TEST(AttentionOperatorOfSharedKeys, TakesMasksOfOpenExtents) {
  for (const int64_t heads : {1, 4}) {
    ModelBuilder model;
    const std::vector<Tensor> inputs = {random_input({1, 4, 3, 8}, 1), random_input({1, 2, 5, 8}, 2),
                                        random_input({1, 2, 5, 8}, 3), flags({1, heads, 3, 5})};
    std::vector<std::string> names = {model.input("q", {1, 4, 3, 8}), model.input("k", {1, 2, 5, 8}),
                                      model.input("v", {1, 2, 5, 8}),
                                      model.input("mask", {"b", "h", "q", 5}, DType::boolean)};
    auto node = model.node("Attention", names, 3);
    for (int i = 0; i < 3; ++i) model.output(node.result(i));
    expect_alike(model.bytes(25), inputs, true);
  }
}

Tensor as_bfloat(const Tensor& tensor) {
  Tensor narrow(DType::bf16, tensor.dims());
  for (int64_t i = 0; i < tensor.size(); ++i)
    static_cast<uint16_t*>(narrow.mutable_raw())[i] = float_to_bfloat(tensor.data<float>()[i]);
  return narrow;
}

TEST(AttentionOperatorInBfloat16, IsOneNodeToo) {
  for (const int64_t key_heads : {4, 2}) {
    const std::vector<Tensor> inputs = {as_bfloat(random_input({2, 4, 9, 16}, 1)),
                                        as_bfloat(random_input({2, key_heads, 9, 16}, 2)),
                                        as_bfloat(random_input({2, key_heads, 9, 6}, 3))};
    ModelBuilder model;
    std::vector<std::string> names;
    for (const Tensor& input : inputs) {
      names.push_back(model.input("x" + std::to_string(names.size()),
                                  std::vector<testing::Extent>(input.dims().begin(), input.dims().end()), DType::bf16));
    }
    auto node = model.node("Attention", names, 1);
    node.with("is_causal", int64_t{1});
    model.output(node.result(0), DType::bf16);
    const std::string bytes = model.bytes(23);
    const auto load = [&](int level) {
      return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 1, .optimization_level = level});
    };
    Profile profile;
    const Tensor expected = load(0).run(inputs)[0], got = load(99).run_profiled(inputs, profile)[0];
    ASSERT_EQ(got.dims(), expected.dims());
    for (int64_t i = 0; i < got.size(); ++i) {
      const auto at = [&](const Tensor& tensor) {
        return bfloat_to_float(static_cast<const uint16_t*>(tensor.raw())[i]);
      };
      // The definition rounds scores of up to 4, shares and the result to 8 bits each.
      ASSERT_NEAR(at(got), at(expected), 0.03F) << "element " << i;
    }
    bool is_fused = false;
    for (const auto& step : profile.steps) is_fused = is_fused || step.op.find("Softmax+MatMul") != std::string::npos;
    EXPECT_TRUE(is_fused) << key_heads;
  }
}

// com.microsoft's, of one sequence whose cache grows: prompts (with a causal mask) and single tokens.
TEST(GroupQueryAttentionOperator, IsOneNodeToo) {
  constexpr int64_t kPast = 5, kHeads = 4, kKeyHeads = 2, kSize = 8;
  for (const int64_t length : {1, 6}) {
    const std::vector<Tensor> inputs = {
        random_input({1, length, kHeads * kSize}, 1), random_input({1, length, kKeyHeads * kSize}, 2),
        random_input({1, length, kKeyHeads * kSize}, 3), random_input({1, kKeyHeads, kPast, kSize}, 4),
        random_input({1, kKeyHeads, kPast, kSize}, 5)};
    ModelBuilder model;
    std::vector<std::string> names;
    for (const Tensor& input : inputs) {
      names.push_back(model.input("x" + std::to_string(names.size()),
                                  std::vector<testing::Extent>(input.dims().begin(), input.dims().end())));
    }
    const auto total = static_cast<int32_t>(kPast + length), last = total - 1;
    names.push_back(model.weight(Tensor::from<int32_t>({1}, std::span<const int32_t>(&last, 1))));
    names.push_back(model.weight(Tensor::scalar<int32_t>(total)));
    auto node = model.node("GroupQueryAttention", names, 3);
    node.of_domain("com.microsoft").with("num_heads", kHeads).with("kv_num_heads", kKeyHeads);
    for (int i = 0; i < 3; ++i) model.output(node.result(i));
    SCOPED_TRACE(::testing::Message() << length << " tokens");
    expect_alike(model.bytes(21), inputs, true);
  }
}

TEST(GroupQueryAttentionOperator, TakesValuesOfOpenExtents) {
  const std::vector<Tensor> inputs = {random_input({1, 1, 32}, 1), random_input({1, 1, 16}, 2),
                                      random_input({1, 1, 16}, 3), random_input({1, 2, 3, 8}, 4),
                                      random_input({1, 2, 3, 8}, 5)};
  ModelBuilder model;
  std::vector<std::string> names = {model.input("q", {1, 1, 32}), model.input("k", {"b", "s", "hidden"}),
                                    model.input("v", {"b", "s", "hidden"}), model.input("past_k", {1, 2, 3, 8}),
                                    model.input("past_v", {1, 2, 3, 8})};
  names.push_back(model.weight(Tensor::from<int32_t>({1}, {3})));
  names.push_back(model.weight(Tensor::scalar<int32_t>(4)));
  auto node = model.node("GroupQueryAttention", names, 3);
  node.of_domain("com.microsoft").with("num_heads", 4).with("kv_num_heads", 2);
  for (int i = 0; i < 3; ++i) model.output(node.result(i));
  expect_alike(model.bytes(21), inputs, true);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, AttentionOperator,
    ::testing::Values(
        Case{.name = "heads_apart", .query = {2, 3, 4, 8}, .key = {2, 3, 5, 8}, .value = {2, 3, 5, 6}},
        Case{.name = "heads_joined",
             .query = {2, 4, 24},
             .key = {2, 5, 24},
             .value = {2, 5, 18},
             .attributes = {{"q_num_heads", 3}, {"kv_num_heads", 3}}},
        Case{.name = "grouped", .query = {2, 4, 3, 8}, .key = {2, 2, 5, 8}, .value = {2, 2, 5, 8}},
        Case{.name = "grouped_causal_with_past",
             .query = {2, 6, 3, 8},
             .key = {2, 2, 3, 8},
             .value = {2, 2, 3, 6},
             .past = 4,
             .attributes = {{"is_causal", 1}}},
        Case{.name = "grouped_one_token",
             .query = {2, 6, 1, 8},
             .key = {2, 2, 1, 8},
             .value = {2, 2, 1, 8},
             .past = 40,
             .attributes = {{"is_causal", 1}}},
        Case{.name = "grouped_mask_of_heads",
             .query = {2, 4, 3, 8},
             .key = {2, 2, 5, 8},
             .value = {2, 2, 5, 8},
             .mask = {2, 4, 3, 5}},
        Case{.name = "grouped_mask_of_batch",
             .query = {2, 4, 3, 8},
             .key = {2, 2, 5, 8},
             .value = {2, 2, 5, 8},
             .mask = {2, 1, 3, 5},
             .is_mask_bool = true},
        Case{.name = "grouped_lengths",
             .query = {2, 4, 3, 8},
             .key = {2, 2, 5, 8},
             .value = {2, 2, 5, 8},
             .lengths = {5, 2}},
        Case{.name = "causal_with_past",
             .query = {1, 2, 3, 8},
             .key = {1, 2, 3, 8},
             .value = {1, 2, 3, 8},
             .past = 4,
             .attributes = {{"is_causal", 1}}},
        Case{.name = "windowed",
             .query = {1, 2, 9, 8},
             .key = {1, 2, 6, 8},
             .value = {1, 2, 6, 8},
             .attributes = {{"left_window_size", 2}, {"right_window_size", 1}}},
        Case{.name = "float_mask",
             .query = {2, 3, 4, 8},
             .key = {2, 3, 5, 8},
             .value = {2, 3, 5, 8},
             .mask = {2, 1, 4, 5}},
        Case{.name = "empty_row",
             .query = {2, 3, 4, 8},
             .key = {2, 3, 5, 8},
             .value = {2, 3, 5, 8},
             .mask = {4, 5},
             .is_mask_bool = true},
        Case{.name = "lengths", .query = {2, 3, 4, 8}, .key = {2, 3, 5, 8}, .value = {2, 3, 5, 8}, .lengths = {5, 2}},
        Case{.name = "causal_and_mask",
             .query = {1, 2, 4, 8},
             .key = {1, 2, 4, 8},
             .value = {1, 2, 4, 8},
             .mask = {4, 4},
             .is_mask_bool = true,
             .attributes = {{"is_causal", 1}}}));

}  // namespace
}  // namespace lathe
