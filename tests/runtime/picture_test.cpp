// Networks over pictures: what layouts of channels and places in memory do, with all passes as without.
#include <gtest/gtest.h>

#include "lathe/profile.h"
#include "tests/model_builder.h"
#include "tests/runtime/expect_results.h"

namespace lathe {
namespace {

using testing::ModelBuilder;
using testing::random_input;

std::string conv(ModelBuilder& model, const std::string& x, int64_t in, int64_t out, int64_t window) {
  const int64_t pad = window / 2;
  return model.node("Conv", {x, model.random_weight({out, in, window, window}, 0.2F), model.random_weight({out})})
      .with("pads", {pad, pad, pad, pad})
      .result();
}

// The profile of the run with all passes.
Profile expect_alike(ModelBuilder& model, const Tensor& x) {
  const std::vector<Tensor> input = {x};
  const std::string bytes = model.bytes(13);
  const auto load = [&](int level) {
    return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 2, .optimization_level = level});
  };
  Profile profile;
  testing::expect_near(load(99).run_profiled(input, profile), load(0).run(input));
  return profile;
}

// Parts of one and a half blocks: two of four begin with a block of the whole. One of these is read again behind it,
// when others' channels have come into its last block.
TEST(Pictures, PartsThatBeginWithABlockLieInTheWhole) {
  for (const int64_t channels : {24, 20, 12}) {
    ModelBuilder model;
    const std::string x = model.input("x", {1, 16, 9, 11});
    std::vector<std::string> parts;
    for (const int64_t window : {1, 3, 5, 7})
      parts.push_back(model.node("Relu", {conv(model, x, 16, channels, window)}));
    const std::string whole = model.node("Concat", parts).with("axis", 1);
    model.output(conv(model, whole, 4 * channels, 32, 1));
    model.output(model.node("Tanh", {conv(model, parts[2], channels, 32, 3)}));
    expect_alike(model, random_input({1, 16, 9, 11}, static_cast<int>(channels)));
  }
}

// A part of a few channels has as many bytes as the block in which it lies with others: it is not that block, which
// must not become a part in its place.
TEST(Pictures, PartsOfOneBlockLieInOneWholeOnly) {
  ModelBuilder model;
  const std::string x = model.input("x", {1, 16, 9, 11});
  const auto part = [&](int64_t window) { return model.node("Relu", {conv(model, x, 16, 4, window)}).result(); };
  const std::string first = part(1), third = part(5);
  const std::string both = model.node("Concat", {first, part(3)}).with("axis", 1);
  const std::string all = model.node("Concat", {first, third, both}).with("axis", 1);
  model.output(conv(model, all, 16, 32, 1));
  model.output(conv(model, both, 8, 32, 3));
  expect_alike(model, random_input({1, 16, 9, 11}, 5));
}

TEST(Pictures, ConvolutionsThatPaintThemSumAlongTheirInputs) {
  ModelBuilder model;
  const std::string x = model.input("x", {1, 64, 12, 17});
  const std::string painted = model.node("Tanh", {conv(model, model.node("Relu", {x}), 64, 1, 7)});
  model.output(painted);
  model.output(conv(model, painted, 1, 32, 3));
  const Profile profile = expect_alike(model, random_input({1, 64, 12, 17}, 3));
  const bool sums = std::any_of(profile.steps.begin(), profile.steps.end(),
                                [](const auto& step) { return step.kernel.ends_with(" dots"); });
  EXPECT_TRUE(sums);
}

}  // namespace
}  // namespace lathe
