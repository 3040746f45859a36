// com.microsoft's DynamicQuantizeLSTM.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

// What the zero points of the weights are.
enum class Zeros { none, centered, uneven, by_column };

struct Case {
  std::string direction = "forward";
  int64_t steps = 3, batch = 2, input = 5, hidden = 7;
  bool is_signed = true, has_column_scales = false;
  Zeros zeros = Zeros::none;
  bool has_bias = true, has_lengths = false, has_initial = true, has_peepholes = false, has_constants = true;
  bool wants_y = true;
  float clip = 0;
  int most = 128;  // of signed weights, in size

  DType dtype() const { return is_signed ? DType::i8 : DType::u8; }  // of the weights
  int64_t directions() const { return direction == "bidirectional" ? 2 : 1; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.direction << " T" << c.steps << " B" << c.batch << " I" << c.input << " H" << c.hidden
             << (c.is_signed ? " i8" : " u8") << (c.has_column_scales ? " by column" : "") << " zeros "
             << static_cast<int>(c.zeros) << (c.has_bias ? " bias" : "") << (c.has_lengths ? " lengths" : "")
             << (c.has_initial ? " initial" : "") << (c.has_peepholes ? " P" : "")
             << (c.has_constants ? "" : " run-time weights") << (c.wants_y ? "" : " without Y") << " clip" << c.clip
             << " most " << c.most;
}

constexpr float kLargestScale = 0.006f;  // of weights

Tensor zero_points(const Case& c, std::mt19937& random) {
  const int64_t columns = 4 * c.hidden;
  const Dims dims = c.zeros == Zeros::by_column ? Dims{c.directions(), columns} : Dims{c.directions()};
  Tensor zeros(c.dtype(), dims);
  for (int64_t i = 0; i < zeros.size(); ++i) {
    const int centered = c.is_signed ? 0 : 128;
    const int zero = c.zeros == Zeros::none       ? 0
                     : c.zeros == Zeros::centered ? centered
                     : c.zeros == Zeros::uneven   ? centered + 11 * (static_cast<int>(i) + 1)
                                                  : centered + static_cast<int>(random() % 32);
    static_cast<uint8_t*>(zeros.mutable_raw())[i] = static_cast<uint8_t>(zero);
  }
  return zeros;
}

OpTester node_of(const Case& c) {
  std::mt19937 random(7);
  OpTester node = microsoft("DynamicQuantizeLSTM");
  const auto weights = [&](const Tensor& tensor) {
    if (c.has_constants) {
      node.constant(tensor);
    } else {
      node.input(tensor);
    }
  };
  const auto optional = [&](bool is_there, const Tensor& tensor) {
    if (is_there) {
      node.input(tensor);
    } else {
      node.absent();
    }
  };
  const auto bytes = [&](const Dims& dims) {
    Tensor tensor = random_bytes(c.dtype(), dims, random);
    if (!c.is_signed) return tensor;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      int8_t& each = tensor.mutable_data<int8_t>()[i];
      each = static_cast<int8_t>(std::clamp<int>(each, -c.most, c.most - (c.most == 128 ? 1 : 0)));
    }
    return tensor;
  };
  const int64_t d = c.directions(), columns = 4 * c.hidden;
  node.input(random_tensor({c.steps, c.batch, c.input}, random, -1.5f, 1));
  weights(bytes({d, c.input, columns}));
  weights(bytes({d, c.hidden, columns}));
  optional(c.has_bias, random_tensor({d, 2 * columns}, random, -0.5f, 0.5f));
  Tensor lengths(DType::i32, {c.batch});
  for (int64_t b = 0; b < c.batch; ++b) {
    lengths.mutable_data<int32_t>()[b] = static_cast<int32_t>((c.steps + b) % (c.steps + 1));
  }
  optional(c.has_lengths, lengths);
  for (int i = 0; i < 2; ++i) optional(c.has_initial, random_tensor({d, c.batch, c.hidden}, random));
  optional(c.has_peepholes, random_tensor({d, 3 * c.hidden}, random, -0.5f, 0.5f));
  for (int i = 0; i < 2; ++i) {
    weights(random_tensor(c.has_column_scales ? Dims{d, columns} : Dims{d}, random, kLargestScale / 2, kLargestScale));
    weights(zero_points(c, random));
  }
  node.with("hidden_size", c.hidden).with("direction", c.direction);
  if (c.clip > 0) node.with("clip", c.clip);
  node.outputs(3);
  if (!c.wants_y) node.unwanted(0);
  return node;
}

// Generated functions differ from those of the reference by roundings, which may turn a byte of H into the next one: a
// gate then is off by a step of H, which is within -1 and 1, times a weight. Half of it arrives in H, and a few meet.
float tolerance() {
  constexpr float kStep = 2 / 255.0f, kLargestWeight = 255 * kLargestScale;
  return 2 * kStep * kLargestWeight;
}

void expect_alike(const Case& c, std::initializer_list<int> thread_counts) {
  OpTester node = node_of(c);
  const std::vector<Tensor> expected = node.reference();
  for (const Isa isa : testing::int8_isas_here()) {
    for (const int threads : thread_counts) {
      const auto results = node.lowered(isa, threads);
      ASSERT_TRUE(results) << c;
      int64_t count = 0, far = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        if (!(*results)[i].defined()) continue;
        ASSERT_EQ((*results)[i].dims(), expected[i].dims()) << c;
        for (int64_t j = 0; j < expected[i].size(); ++j) {
          const float got = (*results)[i].data<float>()[j], want = expected[i].data<float>()[j];
          ASSERT_NEAR(got, want, tolerance() * (1 + std::fabs(want)))
              << c << ", output " << i << " at " << j << ", " << name_of(isa) << ", threads " << threads;
          ++count;
          far += std::fabs(got - want) > 2e-5f * (1 + std::fabs(want));
        }
      }
      // Most bytes are the same, and then results are.
      EXPECT_LE(far * 4, count) << c << ", " << name_of(isa) << ", threads " << threads;
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool is_signed : {false, true}) {
    for (const Zeros zeros : {Zeros::none, Zeros::centered, Zeros::uneven, Zeros::by_column}) {
      all.push_back({.is_signed = is_signed, .zeros = zeros});
      all.push_back({.direction = "bidirectional",
                     .batch = 5,
                     .input = 33,
                     .hidden = 20,
                     .is_signed = is_signed,
                     .has_column_scales = true,
                     .zeros = zeros});
      all.push_back({.direction = "bidirectional", .is_signed = is_signed, .zeros = zeros, .has_constants = false});
    }
  }
  // Quantizers leave -128 out, or the eighth bit.
  for (const int most : {64, 127}) {
    all.push_back({.steps = 7, .batch = 1, .input = 70, .hidden = 65, .most = most});
    all.push_back({.direction = "bidirectional", .steps = 5, .batch = 3, .has_column_scales = true, .most = most});
    all.push_back({.steps = 4, .batch = 14, .has_lengths = true, .most = most});
    all.push_back({.batch = 2, .zeros = Zeros::uneven, .most = most});
  }
  all.push_back({.steps = 1, .batch = 1, .input = 1, .hidden = 1});
  all.push_back({.steps = 4, .batch = 1, .input = 128, .hidden = 64});
  all.push_back({.direction = "reverse", .has_bias = false, .has_initial = false});
  all.push_back({.batch = 17, .hidden = 33, .has_peepholes = true});
  all.push_back({.steps = 5, .batch = 7, .has_lengths = true, .clip = 0.4f});
  all.push_back({.direction = "bidirectional", .steps = 4, .batch = 6, .has_lengths = true, .wants_y = false});
  all.push_back({.direction = "reverse", .steps = 6, .has_bias = false, .has_peepholes = true, .wants_y = false});
  return all;
}

TEST(DynamicQuantizeLstm, GeneratedCodeAgreesWithTheReference) {
  for (const Case& c : cases()) {
    expect_alike(c, {1, 2});
    if (HasFatalFailure()) return;
  }
}

// So much work in a time step that threads share it, by entries of even batches, else by columns of the products. How
// many they are changes nothing.
TEST(DynamicQuantizeLstm, ThreadsShareADirection) {
  constexpr int64_t kHidden = 133;
  for (const Zeros zeros : {Zeros::none, Zeros::uneven, Zeros::by_column}) {
    for (const int64_t batch : {5, 12, 19}) {
      expect_alike({.batch = batch, .hidden = kHidden, .zeros = zeros}, {2, 3, 4});
      expect_alike(
          {.direction = "bidirectional", .batch = batch, .hidden = kHidden, .zeros = zeros, .has_lengths = true},
          {2, 4});
      if (HasFatalFailure()) return;
    }
  }
}

// One of the sequences ends after the first step.
OpTester ending_sequence(const char* direction) {
  const Tensor scale_w = tensor<float>({1}, {0.02f}), scale_r = tensor<float>({1}, {0.03f});
  const Tensor zero = tensor<int8_t>({1}, {0});
  OpTester node = microsoft("DynamicQuantizeLSTM");
  node.input(tensor<float>({4, 2, 1}, {-0.75f, 1.25f, 1, -2.25f, 0.5f, 1.5f, -1.25f, 1}));
  node.constant(tensor<int8_t>({1, 1, 8}, {-63, 65, 73, -55, 40, 51, 30, -47}));
  node.constant(tensor<int8_t>({1, 2, 8}, {45, 74, 31, 69, -93, 19, -35, 77, 73, 89, 63, -82, -82, 16, 2, 44}));
  node.absent().input(tensor<int32_t>({2}, {4, 1})).input(tensor<float>({1, 2, 2}, {-0.5f, -0.75f, 0.75f, -0.75f}));
  node.input(tensor<float>({1, 2, 2}, {1.5f, 0, 3, -3})).absent();
  node.constant(scale_w).constant(zero).constant(scale_r).constant(zero).with("hidden_size", 2).outputs(3);
  return node.with("direction", direction);
}

void expect_output(OpTester& node, size_t output, const std::vector<float>& expected) {
  std::vector<Tensor> results{node.reference()[output]};
  for (const Isa isa : isas_here()) results.push_back(node.lowered(isa, 1).value()[output]);
  for (const Tensor& result : results) {
    ASSERT_EQ(result.size(), static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(result.data<float>()[i], expected[i], 1e-5) << i;
  }
}

// Its results with one thread, by version 1.31.
TEST(DynamicQuantizeLstm, AgreesWithOnnxRuntimeWhereASequenceEnds) {
  OpTester forward = ending_sequence("forward"), reverse = ending_sequence("reverse");
  expect_output(forward, 0,
                {0.0427414f, -0.0122726f, 0.7247839f, -0.8753529f, 0.6385359f, -0.1394740f, 0, 0, 0.0766155f,
                 0.1337825f, 0, 0, -0.0946718f, 0.2030323f, 0, 0});
  expect_output(reverse, 0,
                {-0.1043780f, 0.2021667f, 0.7247839f, -0.8753529f, 0.3230504f, -0.1115096f, 0, 0, 0.4656443f,
                 -0.1016599f, 0, 0, 0.0203511f, -0.0058167f, 0, 0});
  expect_output(forward.unwanted(0), 1, {-0.0952879f, 0.2043497f, 0.7247839f, -0.8753529f});
  expect_output(reverse.unwanted(0), 1, {-0.1029190f, 0.1993404f, 0.7247839f, -0.8753529f});
}

TEST(DynamicQuantizeLstm, SequencesOfNoStepsEndWithZeros) {
  const Case c{.direction = "bidirectional", .batch = 4, .has_lengths = true};
  OpTester node = node_of(c);  // the second one's length is 0
  for (const std::vector<Tensor>& results : {node.reference(), node.lowered(isas_here()[0], 1).value()}) {
    for (size_t i = 1; i < results.size(); ++i) {
      for (int64_t at = 0; at < results[i].size(); ++at) {
        const bool is_second = at / c.hidden % c.batch == 1;
        EXPECT_EQ(results[i].data<float>()[at] == 0, is_second) << "output " << i << " at " << at;
      }
    }
  }
}

// Time steps behind the longest sequence, and states of sequences that do not run, change no range.
TEST(DynamicQuantizeLstm, WhatIsNotInUseHasNoPartInRanges) {
  constexpr int64_t kSteps = 5, kLongest = 3, kInput = 6, kHidden = 8, kColumns = 4 * kHidden;
  for (const std::string direction : {"forward", "reverse"}) {
    const auto results = [&](bool has_more, std::optional<Isa> isa) {
      std::mt19937 random(11);
      const int64_t batch = has_more ? 2 : 1, steps = has_more ? kSteps : kLongest;
      const Tensor own_x = random_tensor({kLongest, 1, kInput}, random), own_h = random_tensor({1, 1, kHidden}, random);
      Tensor x(DType::f32, {steps, batch, kInput}), h(DType::f32, {1, batch, kHidden}), lengths(DType::i32, {batch});
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t i = 0; i < kInput; ++i)
            x.mutable_data<float>()[(t * batch + b) * kInput + i] = t >= kLongest ? 1000.0f
                                                                    : b == 1      ? 0
                                                                                  : own_x.data<float>()[t * kInput + i];
      for (int64_t j = 0; j < batch * kHidden; ++j)
        h.mutable_data<float>()[j] = j < kHidden ? own_h.data<float>()[j] : 0;
      for (int64_t b = 0; b < batch; ++b) lengths.mutable_data<int32_t>()[b] = b == 0 ? kLongest : 0;
      const Tensor scale = tensor<float>({1}, {0.01f}), zero = tensor<int8_t>({1}, {0});
      OpTester node = microsoft("DynamicQuantizeLSTM");
      node.input(x).constant(random_bytes(DType::i8, {1, kInput, kColumns}, random));
      node.constant(random_bytes(DType::i8, {1, kHidden, kColumns}, random)).absent().input(lengths).input(h).absent();
      node.absent().constant(scale).constant(zero).constant(scale).constant(zero);
      node.with("hidden_size", kHidden).with("direction", direction).outputs(3);
      return isa ? node.lowered(*isa, 1).value() : node.reference();
    };
    std::vector<std::optional<Isa>> ways{std::nullopt};
    for (const Isa isa : isas_here()) ways.emplace_back(isa);
    for (const std::optional<Isa> isa : ways) {
      const Tensor alone = results(false, isa)[1], among = results(true, isa)[1];
      for (int64_t j = 0; j < kHidden; ++j) {
        EXPECT_NEAR(among.data<float>()[j], alone.data<float>()[j], 1e-6) << direction << (isa ? " generated" : "");
      }
    }
  }
}

// What bytes hold exactly is not rounded: the node then is an LSTM of its real weights.
TEST(DynamicQuantizeLstm, IsAnLstmWhereNothingIsRounded) {
  constexpr int64_t kBatch = 2, kInput = 4, kHidden = 3, kColumns = 4 * kHidden;
  std::mt19937 random(9);
  const auto multiples = [&](const Dims& dims) {
    Tensor tensor(DType::f32, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const auto step = i < 2 ? 255 * i : static_cast<int64_t>(random() % 256);  // the whole range
      tensor.mutable_data<float>()[i] = static_cast<float>(step - 100) / 128;
    }
    return tensor;
  };
  const Tensor x = multiples({1, kBatch, kInput}), h = multiples({1, kBatch, kHidden}),
               c = random_tensor({1, kBatch, kHidden}, random), bias = random_tensor({1, 2 * kColumns}, random);
  Tensor w(DType::u8, {1, kInput, kColumns}), r(DType::u8, {1, kHidden, kColumns});
  Tensor real_w(DType::f32, {1, kColumns, kInput}), real_r(DType::f32, {1, kColumns, kHidden});
  const auto fill = [&](Tensor& bytes, Tensor& real, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        const auto byte = static_cast<uint8_t>(random());
        bytes.mutable_data<uint8_t>()[i * kColumns + j] = byte;
        real.mutable_data<float>()[j * rows + i] = static_cast<float>(byte - 128) * 0.01f;
      }
    }
  };
  fill(w, real_w, kInput);
  fill(r, real_r, kHidden);
  const Tensor scale = tensor<float>({1}, {0.01f}), zero = tensor<uint8_t>({1}, {128});
  OpTester node = microsoft("DynamicQuantizeLSTM");
  node.input(x).constant(w).constant(r).input(bias).absent().input(h).input(c).absent();
  node.constant(scale).constant(zero).constant(scale).constant(zero).with("hidden_size", kHidden).outputs(3);
  OpTester lstm("LSTM", 14);
  lstm.input(x).input(real_w).input(real_r).input(bias).absent().input(h).input(c).with("hidden_size", kHidden);
  const std::vector<Tensor> got = node.reference(), expected = lstm.outputs(3).reference();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].dims(), expected[i].dims());
    for (int64_t j = 0; j < expected[i].size(); ++j) {
      EXPECT_NEAR(got[i].data<float>()[j], expected[i].data<float>()[j], 1e-5);
    }
  }
}

TEST(DynamicQuantizeLstm, RejectsOperandsThatDoNotFit) {
  Case c;
  EXPECT_NO_THROW(node_of(c).reference());
  const Tensor scale = tensor<float>({1}, {0.01f}), zero = tensor<int8_t>({1}, {0});
  const Tensor x(DType::f32, {3, 2, 5}), w(DType::i8, {1, 5, 28}), r(DType::i8, {1, 7, 28});
  const auto with = [&](const Tensor& weights, const Tensor& scales) {
    OpTester node = microsoft("DynamicQuantizeLSTM");
    node.input(x).constant(weights).constant(r).absent().absent().absent().absent().absent();
    return node.constant(scales).constant(zero).constant(scale).constant(zero).with("hidden_size", 7).outputs(3);
  };
  EXPECT_NO_THROW(with(w, scale).reference());
  EXPECT_THROW(with(Tensor(DType::i8, {1, 28, 5}), scale).reference(), Error);
  EXPECT_THROW(with(w, tensor<float>({3}, {1, 1, 1})).reference(), Error);
  OpTester incomplete = microsoft("DynamicQuantizeLSTM");
  incomplete.input(x).constant(w).constant(r).with("hidden_size", 7).outputs(3);
  EXPECT_THROW(incomplete.reference(), Error);
}

}  // namespace
}  // namespace lathe::testing
