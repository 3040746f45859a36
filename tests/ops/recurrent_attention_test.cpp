// LinearAttention, CausalConvWithState and FlexAttention against plain loops in float64.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

void expect_near(const Tensor& result, const std::vector<double>& expected, double bound) {
  ASSERT_EQ(result.size(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(result.data<float>()[i], expected[i], bound) << i;
}

// ---- LinearAttention

constexpr int64_t kBatch = 2, kSteps = 5, kQueryHeads = 4, kHeads = 2, kKeySize = 3, kValueSize = 9;

struct Recurrence {
  std::string rule;
  bool has_past, has_decay_per_key, has_rate_per_head;
  Tensor query, key, value, past, decay, rate;

  bool decays() const { return rule == "gated" || rule == "gated_delta"; }
  bool corrects() const { return rule == "delta" || rule == "gated_delta"; }
};

Recurrence random_recurrence(const std::string& rule, std::mt19937& random) {
  Recurrence r{rule, random() % 2 == 0, random() % 2 == 0, random() % 2 == 0, {}, {}, {}, {}, {}, {}};
  r.query = random_tensor({kBatch, kSteps, kQueryHeads * kKeySize}, random);
  r.key = random_tensor({kBatch, kSteps, kHeads * kKeySize}, random);
  r.value = random_tensor({kBatch, kSteps, kHeads * kValueSize}, random);
  if (r.has_past) r.past = random_tensor({kBatch, kHeads, kKeySize, kValueSize}, random);
  if (r.decays())
    r.decay = random_tensor({kBatch, kSteps, kHeads * (r.has_decay_per_key ? kKeySize : 1)}, random, -1, 0);
  if (r.corrects()) r.rate = random_tensor({kBatch, kSteps, r.has_rate_per_head ? kHeads : 1}, random, 0, 1);
  return r;
}

// The text's recurrence, one state after the other.
void expected_recurrence(const Recurrence& r, std::vector<double>& output, std::vector<double>& states) {
  output.assign(kBatch * kSteps * kQueryHeads * kValueSize, 0);
  states.clear();
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      double s[kKeySize][kValueSize] = {};
      for (int64_t d = 0; d < kKeySize; ++d) {
        for (int64_t v = 0; v < kValueSize && r.has_past; ++v) {
          s[d][v] = r.past.data<float>()[((b * kHeads + h) * kKeySize + d) * kValueSize + v];
        }
      }
      for (int64_t t = 0; t < kSteps; ++t) {
        const int64_t row = b * kSteps + t;
        const float* k = r.key.data<float>() + (row * kHeads + h) * kKeySize;
        const float* value = r.value.data<float>() + (row * kHeads + h) * kValueSize;
        for (int64_t d = 0; d < kKeySize && r.decays(); ++d) {
          const int64_t at = r.has_decay_per_key ? (row * kHeads + h) * kKeySize + d : row * kHeads + h;
          for (double& x : s[d]) x *= std::exp(double{r.decay.data<float>()[at]});
        }
        const double rate = r.corrects() ? r.rate.data<float>()[r.has_rate_per_head ? row * kHeads + h : row] : 1.0F;
        double added[kValueSize];
        for (int64_t v = 0; v < kValueSize; ++v) {
          double held = 0;
          for (int64_t d = 0; d < kKeySize; ++d) held += s[d][v] * k[d];
          added[v] = rate * (value[v] - (r.corrects() ? held : 0));
        }
        for (int64_t d = 0; d < kKeySize; ++d) {
          for (int64_t v = 0; v < kValueSize; ++v) s[d][v] += k[d] * added[v];
        }
        for (int64_t q = h * kQueryHeads / kHeads; q < (h + 1) * kQueryHeads / kHeads; ++q) {
          for (int64_t d = 0; d < kKeySize; ++d) {
            const double factor = r.query.data<float>()[(row * kQueryHeads + q) * kKeySize + d] / std::sqrt(kKeySize);
            for (int64_t v = 0; v < kValueSize; ++v) {
              output[static_cast<size_t>((row * kQueryHeads + q) * kValueSize + v)] += factor * s[d][v];
            }
          }
        }
      }
      for (const auto& line : s) states.insert(states.end(), std::begin(line), std::end(line));
    }
  }
}

TEST(LinearAttention, FollowsEachRule) {
  std::mt19937 random(11);
  for (const char* rule : {"linear", "gated", "delta", "gated_delta"}) {
    for (int round = 0; round < 4; ++round) {
      const Recurrence r = random_recurrence(rule, random);
      OpTester tester("LinearAttention", 27);
      tester.with("update_rule", rule).with("q_num_heads", kQueryHeads).with("kv_num_heads", kHeads).outputs(2);
      for (const Tensor& operand : {r.query, r.key, r.value, r.past, r.decay, r.rate}) {
        operand.defined() ? tester.input(operand) : tester.absent();
      }
      std::vector<double> output, states;
      expected_recurrence(r, output, states);
      std::vector<std::vector<Tensor>> all{tester.reference()};
      for (const int threads : {1, 3}) all.push_back(*tester.lowered(usable_isa(), threads));
      for (const std::vector<Tensor>& results : all) {
        expect_near(results[0], output, 1e-5);
        expect_near(results[1], states, 1e-5);
      }
    }
  }
}

TEST(LinearAttention, RefusesHeadsAndRowsThatDoNotFit) {
  const Tensor query(DType::f32, {1, 2, 8}), key(DType::f32, {1, 2, 4});
  const auto tester = [&](int64_t query_heads, int64_t heads, const char* rule) {
    OpTester made("LinearAttention", 27);
    made.with("update_rule", rule).with("q_num_heads", query_heads).with("kv_num_heads", heads).outputs(2);
    made.input(query).input(key).input(key);
    return made;
  };
  EXPECT_NO_THROW(tester(2, 1, "linear").reference());
  EXPECT_THROW(tester(0, 1, "linear").reference(), Error);
  EXPECT_THROW(tester(3, 2, "linear").reference(), Error);
  EXPECT_THROW(tester(8, 8, "linear").reference(), Error);
  EXPECT_THROW(tester(2, 1, "gated").reference(), Error);
  EXPECT_THROW(tester(2, 1, "delta").reference(), Error);
  EXPECT_THROW(tester(2, 1, "other").reference(), Error);
}

// ---- CausalConvWithState

TEST(CausalConvWithState, ConvolvesPastAndPresent) {
  std::mt19937 random(12);
  const int64_t batch = 2, channels = 3;
  for (const int64_t length : {1, 2, 9, 40}) {
    for (const int64_t taps : {1, 2, 4}) {
      const bool has_bias = random() % 2 == 0, has_past = random() % 2 == 0, has_silu = random() % 2 == 0;
      const Tensor input = random_tensor({batch, channels, length}, random);
      const Tensor weight = random_tensor({channels, 1, taps}, random), bias = random_tensor({channels}, random);
      const Tensor past = random_tensor({batch, channels, taps - 1}, random);
      OpTester tester("CausalConvWithState", 27);
      tester.with("activation", has_silu ? "silu" : "none").outputs(2).input(input).input(weight);
      has_bias ? tester.input(bias) : tester.absent();
      has_past ? tester.input(past) : tester.absent();
      std::vector<double> output, state;
      for (int64_t row = 0; row < batch * channels; ++row) {
        std::vector<double> samples(static_cast<size_t>(taps - 1), 0);
        for (int64_t i = 0; i < taps - 1 && has_past; ++i) {
          samples[static_cast<size_t>(i)] = past.data<float>()[row * (taps - 1) + i];
        }
        for (int64_t t = 0; t < length; ++t) samples.push_back(input.data<float>()[row * length + t]);
        for (int64_t t = 0; t < length; ++t) {
          double sum = has_bias ? bias.data<float>()[row % channels] : 0.0F;
          for (int64_t i = 0; i < taps; ++i) {
            sum += samples[static_cast<size_t>(t + i)] * weight.data<float>()[row % channels * taps + i];
          }
          output.push_back(has_silu ? sum / (1 + std::exp(-sum)) : sum);
        }
        state.insert(state.end(), samples.end() - (taps - 1), samples.end());
      }
      std::vector<std::vector<Tensor>> all{tester.reference()};
      for (const int threads : {1, 3}) all.push_back(*tester.lowered(usable_isa(), threads));
      for (const std::vector<Tensor>& results : all) {
        expect_near(results[0], output, 2e-6);
        expect_near(results[1], state, 0);
      }
    }
  }
}

TEST(CausalConvWithState, RefusesOperandsThatDoNotFit) {
  const auto run = [](Dims input, Dims weight, Dims bias, Dims past) {
    OpTester tester("CausalConvWithState", 27);
    tester.outputs(2).input(Tensor(DType::f32, std::move(input))).input(Tensor(DType::f32, std::move(weight)));
    tester.input(Tensor(DType::f32, std::move(bias))).input(Tensor(DType::f32, std::move(past))).reference();
  };
  EXPECT_NO_THROW(run({1, 3, 5}, {3, 1, 2}, {3}, {1, 3, 1}));
  EXPECT_THROW(run({1, 3, 5}, {2, 1, 2}, {3}, {1, 3, 1}), Error);
  EXPECT_THROW(run({1, 3, 5}, {3, 3, 2}, {3}, {1, 3, 1}), Error);
  EXPECT_THROW(run({1, 3, 5}, {3, 1, 0}, {3}, {1, 3, 0}), Error);
  EXPECT_THROW(run({1, 3, 5}, {3, 1, 2}, {4}, {1, 3, 1}), Error);
  EXPECT_THROW(run({1, 3, 5}, {3, 1, 2}, {3}, {1, 3, 2}), Error);
}

// ---- FlexAttention

// A body that doubles its input.
std::shared_ptr<const Graph> doubling() {
  auto body = std::make_shared<Graph>();
  const ValueId in = body->add_value("in", TensorType::unranked(DType::f32)), out = body->add_value("out", {});
  body->inputs = {in};
  Node add;
  add.op = &OpRegistry::builtin().require("", "Add", 13);
  add.version = 13;
  add.name = "add";
  add.inputs = {in, in};
  add.outputs = {out};
  body->add_node(add);
  body->outputs = {out};
  return body;
}

TEST(FlexAttention, PassesScoresAndProbabilitiesThroughItsBodies) {
  std::mt19937 random(13);
  const Tensor q = random_tensor({1, 2, 3, 4}, random), k = random_tensor({1, 1, 5, 4}, random);
  const Tensor v = random_tensor({1, 1, 5, 2}, random);
  for (const bool has_bodies : {false, true}) {
    OpTester tester("FlexAttention", 1, "ai.onnx.preview");
    tester.input(q).input(k).input(v);
    if (has_bodies) tester.with("score_mod", doubling()).with("prob_mod", doubling());
    std::vector<double> expected;
    for (int64_t row = 0; row < 6; ++row) {
      double weights[5], sum = 0;
      for (int64_t key = 0; key < 5; ++key) {
        double dot = 0;
        for (int64_t i = 0; i < 4; ++i) dot += double{q.data<float>()[row * 4 + i]} * k.data<float>()[key * 4 + i];
        sum += weights[key] = std::exp(dot / 2 * (has_bodies ? 2 : 1));
      }
      for (int64_t i = 0; i < 2; ++i) {
        double value = 0;
        for (int64_t key = 0; key < 5; ++key) value += weights[key] / sum * v.data<float>()[key * 2 + i];
        expected.push_back(value * (has_bodies ? 2 : 1));
      }
    }
    expect_near(tester.result(), expected, 1e-6);
  }
}

}  // namespace
}  // namespace lathe::testing
