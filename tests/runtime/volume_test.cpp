// Networks over volumes: what convolutions of three spatial axes become, against their plain reference.
#include <gtest/gtest.h>

#include <array>

#include "lathe/profile.h"
#include "tests/model_builder.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

using Axes = std::array<int64_t, 3>;

struct VolumeCase {
  const char* op;
  int64_t in, out, groups;
  Axes extents, kernel, strides, dilations, before, behind, extra;
};

VolumeCase random_volume(std::mt19937& random, bool is_transposed) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  VolumeCase c{is_transposed ? "ConvTranspose" : "Conv", 0, 0, pick(1, 3), {}, {}, {}, {}, {}, {}, {}};
  c.in = c.groups * pick(1, 12);
  c.out = pick(0, 3) == 0 ? c.groups : c.groups * pick(1, 12);
  if (pick(0, 2) == 0) c.in = c.out = c.groups = pick(2, 20);
  const bool has_separate_windows = is_transposed && pick(0, 1) == 0;
  if (has_separate_windows) c.groups = 1;
  for (size_t i = 0; i < 3; ++i) {
    c.kernel[i] = pick(1, 3);
    c.strides[i] = has_separate_windows ? c.kernel[i] : pick(1, 2);
    c.dilations[i] = has_separate_windows ? 1 : pick(1, 2);
    const int64_t span = (c.kernel[i] - 1) * c.dilations[i];
    c.extents[i] = pick(1, 6) + span;
    c.before[i] = has_separate_windows ? 0 : pick(0, span);
    c.behind[i] = has_separate_windows ? 0 : pick(0, span);
    c.extra[i] = has_separate_windows ? 0 : pick(0, c.strides[i] - 1);
  }
  return c;
}

ModelBuilder model_of(const VolumeCase& c) {
  ModelBuilder model;
  const bool is_transposed = std::string_view(c.op) == "ConvTranspose";
  const std::string x = model.input("x", {"batch", c.in, c.extents[0], c.extents[1], c.extents[2]});
  const int64_t rows = is_transposed ? c.in : c.out, columns = (is_transposed ? c.out : c.in) / c.groups;
  auto node = model.node(c.op, {x, model.random_weight({rows, columns, c.kernel[0], c.kernel[1], c.kernel[2]}),
                                model.random_weight({c.out})});
  node.with("group", c.groups)
      .with("strides", {c.strides[0], c.strides[1], c.strides[2]})
      .with("dilations", {c.dilations[0], c.dilations[1], c.dilations[2]})
      .with("pads", {c.before[0], c.before[1], c.before[2], c.behind[0], c.behind[1], c.behind[2]});
  if (is_transposed) node.with("output_padding", {c.extra[0], c.extra[1], c.extra[2]});
  model.output(model.node("Relu", {node.result()}));
  return model;
}

// With all passes as without, and not by a reference.
void expect_alike(ModelBuilder model, const Tensor& x) {
  const std::vector<Tensor> input = {x};
  const std::string bytes = model.bytes(13);
  const auto load = [&](int level) {
    return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 2, .optimization_level = level});
  };
  Profile profile;
  const Tensor expected = load(0).run(input)[0], got = load(99).run_profiled(input, profile)[0];
  ASSERT_EQ(got.dims(), expected.dims());
  for (int64_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], 1e-4) << "element " << i;
  for (const auto& step : profile.steps) EXPECT_NE(step.kernel, "reference") << step.op;
}

TEST(Volumes, ConvolutionsAgreeWithTheReference) {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    const VolumeCase c = random_volume(random, i % 2 == 0);
    SCOPED_TRACE(::testing::Message() << "case " << i << " " << c.op << " " << c.in << ">" << c.out << "/" << c.groups);
    expect_alike(model_of(c), random_input({2, c.in, c.extents[0], c.extents[1], c.extents[2]}, 3));
    if (HasFatalFailure()) return;
  }
}

// Down and up again, as nets that segment scans do.
TEST(Volumes, ANetThatSegmentsAgreesWithTheReference) {
  ModelBuilder model;
  const auto conv = [&](const std::string& x, int64_t in, int64_t out) {
    const std::string y =
        model.node("Conv", {x, model.random_weight({out, in, 3, 3, 3}, 0.2F)}).with("pads", {1, 1, 1, 1, 1, 1});
    const std::string normal =
        model.node("InstanceNormalization", {y, model.random_weight({out}), model.random_weight({out})});
    return model.node("LeakyRelu", {normal}).result();
  };
  const std::string x = model.input("x", {1, 2, 8, 12, 10});
  const std::string fine = conv(x, 2, 16);
  const std::string pooled = model.node("MaxPool", {fine}).with("kernel_shape", {2, 2, 2}).with("strides", {2, 2, 2});
  const std::string coarse = conv(pooled, 16, 24);
  const std::string up =
      model.node("ConvTranspose", {coarse, model.random_weight({24, 16, 2, 2, 2}, 0.2F)}).with("strides", {2, 2, 2});
  const std::string both = model.node("Concat", {fine, up}).with("axis", 1);
  const std::string mean =
      model.node("AveragePool", {conv(both, 32, 16)}).with("kernel_shape", {2, 3, 3}).with("pads", {0, 1, 1, 1, 1, 1});
  model.output(model.node("Conv", {mean, model.random_weight({3, 16, 1, 1, 1}, 0.2F)}));
  expect_alike(std::move(model), random_input({1, 2, 8, 12, 10}, 5));
}

}  // namespace
}  // namespace lathe
