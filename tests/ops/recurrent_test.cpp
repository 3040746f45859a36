#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

struct Case {
  std::string cell, direction = "forward";
  int64_t steps = 3, batch = 2, input = 5, hidden = 7;
  bool has_bias = true, has_initial = true, has_peepholes = false, is_batch_first = false, has_constants = true;
  bool wants_y = true, has_lengths = false;
  int64_t linear_before_reset = 0, input_forget = 0;
  float clip = 0;
  std::vector<std::string> activations = {};
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.cell << ' ' << c.direction << " T" << c.steps << " B" << c.batch << " I" << c.input << " H"
             << c.hidden << (c.has_bias ? " bias" : "") << (c.has_initial ? " initial" : "")
             << (c.has_peepholes ? " P" : "") << (c.is_batch_first ? " batch-first" : "")
             << (c.has_constants ? "" : " run-time weights") << (c.wants_y ? "" : " without Y")
             << (c.has_lengths ? " lengths" : "") << " lbr" << c.linear_before_reset << " clip" << c.clip;
}

OpTester node_of(const Case& c) {
  std::mt19937 random(7);
  const int64_t d = c.direction == "bidirectional" ? 2 : 1, gates = c.cell == "LSTM" ? 4 : c.cell == "GRU" ? 3 : 1;
  const Dims state = c.is_batch_first ? Dims{c.batch, d, c.hidden} : Dims{d, c.batch, c.hidden};
  OpTester node(c.cell, 14);
  const auto weights = [&](Dims dims) {
    const Tensor tensor = random_tensor(dims, random, -0.5f, 0.5f);
    if (c.has_constants) {
      node.constant(tensor);
    } else {
      node.input(tensor);
    }
  };
  node.input(
      random_tensor(c.is_batch_first ? Dims{c.batch, c.steps, c.input} : Dims{c.steps, c.batch, c.input}, random));
  weights({d, gates * c.hidden, c.input});
  weights({d, gates * c.hidden, c.hidden});
  if (c.has_bias) {
    weights({d, 2 * gates * c.hidden});
  } else {
    node.absent();
  }
  if (c.has_lengths) {
    Tensor lengths(DType::i32, {c.batch});
    for (int64_t b = 0; b < c.batch; ++b) {
      lengths.mutable_data<int32_t>()[b] = static_cast<int32_t>((c.steps + b) % (c.steps + 1));
    }
    node.input(lengths);
  } else {
    node.absent();
  }
  const bool is_lstm = c.cell == "LSTM";
  for (int i = 0; i < (is_lstm ? 2 : 1); ++i) {
    if (c.has_initial) {
      node.input(random_tensor(state, random));
    } else {
      node.absent();
    }
  }
  if (is_lstm && c.has_peepholes) weights({d, 3 * c.hidden});
  node.with("hidden_size", c.hidden).with("direction", c.direction).with("layout", int64_t{c.is_batch_first});
  if (c.linear_before_reset != 0) node.with("linear_before_reset", c.linear_before_reset);
  if (c.input_forget != 0) node.with("input_forget", c.input_forget);
  if (c.clip > 0) node.with("clip", c.clip);
  if (!c.activations.empty()) node.with("activations", c.activations);
  node.outputs(is_lstm ? 3 : 2);
  if (!c.wants_y) node.unwanted(0);
  return node;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* cell : {"RNN", "GRU", "LSTM"}) {
    all.push_back({.cell = cell, .steps = 1, .batch = 1, .input = 128, .hidden = 128});
    all.push_back({.cell = cell});
    all.push_back({.cell = cell, .direction = "reverse", .has_bias = false, .has_initial = false});
    all.push_back({.cell = cell, .direction = "bidirectional", .steps = 4, .batch = 3, .hidden = 33});
    all.push_back({.cell = cell, .direction = "bidirectional", .batch = 3, .hidden = 16, .is_batch_first = true});
    all.push_back({.cell = cell, .has_constants = false, .clip = 0.3f});
    all.push_back({.cell = cell, .steps = 6, .has_initial = false, .wants_y = false});
    all.push_back({.cell = cell, .steps = 4, .batch = 6, .has_lengths = true});
    all.push_back({.cell = cell, .direction = "bidirectional", .steps = 5, .batch = 7, .has_lengths = true});
    all.push_back(
        {.cell = cell, .direction = "reverse", .has_initial = false, .is_batch_first = true, .has_lengths = true});
    all.push_back({.cell = cell, .steps = 4, .batch = 5, .wants_y = false, .has_lengths = true});
  }
  all.push_back({.cell = "GRU", .linear_before_reset = 1});
  all.push_back({.cell = "GRU", .direction = "bidirectional", .wants_y = false, .linear_before_reset = 1});
  all.push_back({.cell = "GRU", .has_bias = false, .linear_before_reset = 1});
  all.push_back({.cell = "GRU", .activations = {"HardSigmoid", "Softsign"}});
  all.push_back({.cell = "LSTM", .has_peepholes = true});
  all.push_back({.cell = "LSTM", .direction = "bidirectional", .has_peepholes = true, .input_forget = 1});
  all.push_back({.cell = "LSTM", .activations = {"Softplus", "Elu", "ScaledTanh"}});
  for (const char* name : {"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "Sigmoid"}) {
    all.push_back({.cell = "RNN", .activations = {name}});
  }
  return all;
}

void expect_alike(const Case& c, std::initializer_list<int> thread_counts) {
  OpTester node = node_of(c);
  const std::vector<Tensor> expected = node.reference();
  for (const Isa isa : {Isa::avx2, usable_isa()}) {
    for (const int threads : thread_counts) {
      const auto results = node.lowered(isa, threads);
      ASSERT_TRUE(results) << c;
      for (size_t i = 0; i < expected.size(); ++i) {
        if (!(*results)[i].defined()) continue;
        ASSERT_EQ((*results)[i].dims(), expected[i].dims()) << c;
        for (int64_t j = 0; j < expected[i].size(); ++j) {
          const float want = expected[i].data<float>()[j];
          // Sums of up to 256 products below 1, through few steps of functions that stretch by 1 at most.
          ASSERT_NEAR((*results)[i].data<float>()[j], want, 2e-5f * (1 + std::fabs(want)))
              << c << ", output " << i << " at " << j << ", " << name_of(isa) << ", threads " << threads;
        }
      }
    }
  }
}

TEST(Recurrent, GeneratedCodeAgreesWithTheReference) {
  for (const Case& c : cases()) {
    expect_alike(c, {1, 2});
    if (HasFatalFailure()) return;
  }
}

// So much work in a time step that threads share it, and not a multiple of anything. Even batches are shared by their
// entries, others by columns of the products, but for large ones.
TEST(Recurrent, ThreadsShareADirection) {
  constexpr int64_t kHidden = 133;
  std::vector<Case> all;
  for (const char* cell : {"RNN", "GRU", "LSTM"}) {
    for (const int64_t batch : {12, 17}) {
      all.push_back({.cell = cell, .batch = batch, .hidden = kHidden});
      all.push_back({.cell = cell, .direction = "reverse", .batch = batch, .hidden = kHidden, .has_initial = false});
      all.push_back({.cell = cell, .direction = "bidirectional", .batch = batch, .hidden = kHidden, .wants_y = false});
      all.push_back({.cell = cell, .steps = 2, .batch = batch, .hidden = kHidden, .is_batch_first = true});
      all.push_back({.cell = cell, .batch = batch, .hidden = kHidden, .has_constants = false});
      all.push_back(
          {.cell = cell, .direction = "bidirectional", .batch = batch, .hidden = kHidden, .has_lengths = true});
    }
  }
  for (const int64_t batch : {5, 12, 19}) {
    all.push_back({.cell = "GRU", .batch = batch, .hidden = kHidden, .linear_before_reset = 1});
    all.push_back({.cell = "LSTM", .batch = batch, .hidden = kHidden, .has_peepholes = true});
  }
  for (const Case& c : all) {
    expect_alike(c, {2, 3, 4});
    if (HasFatalFailure()) return;
  }
}

// So many rows and columns that the product with W is made by fewer products of blocks where these pay. Few time steps
// and hidden units: what is off by little grows from step to step.
TEST(Recurrent, ProjectsAllTimeStepsByBlocks) {
  std::vector<Case> all;
  const std::pair<const char*, int64_t> columns_by_cell[] = {{"RNN", 1}, {"GRU", 3}, {"LSTM", 4}};
  for (const auto& [cell, gates] : columns_by_cell) {
    for (const int64_t width : {256, 288}) {
      const int64_t steps = gates == 1 ? 1 : 2, rows = width == 256 ? 96 : 52;
      const Case c{.cell = cell, .steps = steps, .batch = rows / steps, .input = width, .hidden = 288 / gates};
      all.push_back(c);
      all.back().hidden = width / gates;
      all.push_back(c);
      all.back().direction = "bidirectional";
      all.back().has_bias = width == 256;
      all.push_back(c);
      all.back().is_batch_first = true;
      all.back().has_constants = width == 256;
    }
  }
  all.push_back({.cell = "GRU", .steps = 2, .batch = 17, .input = 288, .hidden = 96, .linear_before_reset = 1});
  for (const Case& c : all) {
    expect_alike(c, {1, 2});
    if (HasFatalFailure()) return;
  }
}

TEST(Recurrent, SequencesEndAtTheirLengths) {
  std::mt19937 random(3);
  const Tensor w = random_tensor({1, 2, 3}, random), r = random_tensor({1, 2, 2}, random);
  const Tensor x = random_tensor({4, 2, 3}, random);
  OpTester whole("RNN"), cut("RNN");
  whole.input(x).input(w).input(r).outputs(2);
  cut.input(x).input(w).input(r).absent().input(tensor<int32_t>({2}, {4, 2})).outputs(2);
  const auto all = whole.reference(), some = cut.reference();
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t j = 0; j < 4; ++j) {
      const bool is_past = t >= 2 && j >= 2;
      EXPECT_EQ(some[0].data<float>()[t * 4 + j], is_past ? 0 : all[0].data<float>()[t * 4 + j]);
    }
  }
  EXPECT_EQ(some[1].data<float>()[2], all[0].data<float>()[1 * 4 + 2]);
}

// ONNX Runtime has it so, and ONNX does not say.
TEST(Recurrent, SequencesOfNoStepsEndWithZeros) {
  for (const char* cell : {"RNN", "GRU", "LSTM"}) {
    const Case c{.cell = cell, .direction = "bidirectional", .steps = 3, .batch = 4, .has_lengths = true};
    OpTester node = node_of(c);  // the second one's length is 0
    for (const std::vector<Tensor>& results : {node.reference(), node.lowered(Isa::avx2, 1).value()}) {
      for (size_t i = 1; i < results.size(); ++i) {
        for (int64_t at = 0; at < results[i].size(); ++at) {
          const bool is_second = at / c.hidden % c.batch == 1;
          EXPECT_EQ(results[i].data<float>()[at] == 0, is_second) << cell << ", output " << i << " at " << at;
        }
      }
    }
  }
}

TEST(Recurrent, RejectsLengthsThatNoSequenceHas) {
  std::mt19937 random(3);
  for (const int32_t length : {-1, 5}) {
    OpTester node("GRU");
    node.input(random_tensor({4, 2, 3}, random)).input(random_tensor({1, 6, 3}, random));
    node.input(random_tensor({1, 6, 2}, random)).absent().input(tensor<int32_t>({2}, {4, length})).outputs(2);
    EXPECT_THROW(node.reference(), Error) << length;
    EXPECT_THROW(node.lowered(Isa::avx2, 1), Error) << length;
  }
}

TEST(Recurrent, RejectsOperandsThatDoNotFit) {
  std::mt19937 random(3);
  const Tensor x = random_tensor({4, 2, 3}, random), r = random_tensor({1, 8, 2}, random);
  EXPECT_THROW(OpTester("LSTM").input(x).input(random_tensor({1, 8, 4}, random)).input(r).reference(), Error);
  EXPECT_THROW(OpTester("LSTM").input(x).input(random_tensor({1, 6, 3}, random)).input(r).reference(), Error);
  const Tensor w = random_tensor({1, 8, 3}, random);
  EXPECT_THROW(OpTester("LSTM").input(x).input(w).input(r).input(random_tensor({1, 8}, random)).reference(), Error);
  EXPECT_THROW(OpTester("LSTM").input(x).input(w).input(r).with("direction", "sideways").reference(), Error);
  EXPECT_THROW(OpTester("LSTM").input(x).input(w).input(r).absent().input(tensor<int32_t>({2}, {5, -1})).reference(),
               Error);
}

}  // namespace
}  // namespace lathe::testing
