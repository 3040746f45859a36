#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/ops/plain_node.h"

namespace lathe {
namespace {

using testing::clipped_sum;
using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

struct ConvCase {
  bool is_transposed = false;
  Dims in, kernel;
  Dims strides = {1, 1}, pads = {0, 0, 0, 0}, dilations = {1, 1}, extra = {0, 0};
  int64_t out_channels = 1, groups = 1;
  bool has_bias = false, is_constant = true;
  bool in_blocked = true, out_blocked = true;
  int residual = 0;  // 0 none, 1 full, 2 per channel, 3 scalar, 4 one row, 5 full and another layout
  int threads = 1;
  bool same_upper = false;

  friend std::ostream& operator<<(std::ostream& out, const ConvCase& c) {
    return out << (c.is_transposed ? "transposed " : "") << to_string(c.in) << " kernel " << to_string(c.kernel)
               << " strides " << to_string(c.strides) << " pads " << to_string(c.pads) << " dilations "
               << to_string(c.dilations) << " extra " << to_string(c.extra) << " out " << c.out_channels << " groups "
               << c.groups << (c.has_bias ? " bias" : "") << (c.is_constant ? "" : " dynamic") << " layouts "
               << c.in_blocked << c.out_blocked << " residual " << c.residual << " threads " << c.threads
               << (c.same_upper ? " SAME_UPPER" : "");
  }
};

OneNode make_node(const ConvCase& c, int block, std::mt19937& random) {
  OneNode one;
  const int64_t in_channels = c.in[1];
  Dims weights =
      c.is_transposed ? Dims{in_channels, c.out_channels / c.groups} : Dims{c.out_channels, in_channels / c.groups};
  weights.insert(weights.end(), c.kernel.begin(), c.kernel.end());
  one.inputs = {random_tensor(c.in, random), random_tensor(weights, random)};
  one.is_constant = {false, c.is_constant};
  one.inputs.push_back(c.has_bias ? random_tensor({c.out_channels}, random) : Tensor());
  one.is_constant.push_back(c.is_constant);
  Attributes attributes;
  attributes.set("group", c.groups);
  attributes.set("strides", c.strides);
  attributes.set("dilations", c.dilations);
  if (c.same_upper) {
    attributes.set("auto_pad", std::string("SAME_UPPER"));
  } else {
    attributes.set("pads", c.pads);
  }
  if (c.is_transposed) attributes.set("output_padding", c.extra);
  std::vector<int> blocks = {c.in_blocked ? block : 0, 0, 0};
  const std::string op = c.is_transposed ? "ConvTranspose" : "Conv";
  if (c.residual == 0) {
    one.make(op, 11, attributes, blocks, c.out_blocked ? block : 0, clipped_sum(false));
    return one;
  }
  OneNode plain = one;
  plain.make(op, 11, attributes, blocks, 0);
  Dims out = plain.graph.value(plain.graph.outputs[0]).type.extents(), operand = out;
  if (c.residual == 2) operand = {out[0], out[1]}, operand.resize(out.size(), 1);
  if (c.residual == 3) operand = {1};
  if (c.residual == 4) operand = {out.back()};
  one.inputs.push_back(random_tensor(operand, random));
  one.is_constant.push_back(false);
  blocks.push_back(c.residual == 1 ? block : 0);
  one.make(op, 11, attributes, blocks, c.out_blocked ? block : 0, clipped_sum(true));
  return one;
}

void check(const ConvCase& c, Isa isa, std::mt19937& random, bool any_plan = false) {
  SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
  const OneNode one = make_node(c, vector_lanes(isa), random);
  const Tensor expected = one.expected();
  testing::RandomPlans any(random);
  const std::optional<Tensor> got = any_plan ? one.run(isa, c.threads, any) : one.run(isa, c.threads);
  ASSERT_TRUE(got.has_value()) << "the reference would run";
  ASSERT_EQ(got->dims(), expected.dims());
  // Products of values within [-1, 1]: each rounding errs by at most eps * terms.
  double terms = static_cast<double>(c.in[1] / c.groups) + 2;
  for (int64_t k : c.kernel) terms *= static_cast<double>(k);
  const double tolerance = terms * std::sqrt(terms) * 6e-8 + 1e-6;
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], tolerance) << "element " << i;
  }
}

// Groups that begin and end within blocks: exactly their channels are read, and half vectors multiplied where they do.
TEST(Convolution, ReadsTheChannelsOfNarrowGroups) {
  struct Groups {
    int64_t in_each, out_each, count, window;
  };
  std::mt19937 random(11);
  for (const Groups& g : {Groups{6, 28, 4, 1}, Groups{34, 34, 4, 1}, Groups{68, 68, 4, 1}, Groups{3, 5, 7, 3},
                          Groups{1, 2, 40, 3}, Groups{20, 48, 3, 3}, Groups{17, 24, 3, 1}, Groups{9, 3, 11, 1}}) {
    for (const bool has_bias : {false, true}) {
      const ConvCase c{.in = {2, g.in_each * g.count, 9, 14},
                       .kernel = {g.window, g.window},
                       .pads = {g.window / 2, g.window / 2, g.window / 2, g.window / 2},
                       .out_channels = g.out_each * g.count,
                       .groups = g.count,
                       .has_bias = has_bias,
                       .residual = has_bias ? 1 : 0,
                       .threads = 2};
      for (Isa isa : isas_here()) check(c, isa, random);
    }
  }
}

// Too many taps for code of their own at each border.
TEST(Convolution, LargeWindowsReadPicturesAmongZeros) {
  std::mt19937 random(12);
  const ConvCase blocked{.in = {1, 24, 26, 30},
                         .kernel = {25, 25},
                         .pads = {12, 12, 12, 12},
                         .out_channels = 16,
                         .has_bias = true,
                         .residual = 1,
                         .threads = 2};
  ConvCase plain = blocked;
  plain.in = {2, 3, 48, 40};
  plain.kernel = {29, 21};
  plain.strides = {2, 1};
  plain.pads = {14, 10, 13, 9};
  plain.out_channels = 20;
  plain.in_blocked = plain.out_blocked = false;
  for (Isa isa : isas_here()) {
    check(blocked, isa, random);
    check(plain, isa, random);
  }
}

// A picture painted from many channels: windows of 2x2 side by side, to few plain planes.
TEST(Convolution, SpreadsWindowsOverFewPlanes) {
  std::mt19937 random(12);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const ConvCase c{.is_transposed = true,
                     .in = {pick(1, 2), pick(1, 50), pick(1, 5), pick(6, 40)},
                     .kernel = {2, 2},
                     .strides = {2, 2},
                     .out_channels = pick(1, 5),
                     .has_bias = pick(0, 1) == 1,
                     .is_constant = pick(0, 3) > 0,
                     .out_blocked = false,
                     .residual = static_cast<int>(3 * pick(0, 1)),
                     .threads = static_cast<int>(pick(1, 3))};
    for (Isa isa : isas_here()) check(c, isa, random);
  }
}

ConvCase random_case(std::mt19937& random, bool is_transposed) {
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  ConvCase c;
  for (Dims* dims : {&c.strides, &c.pads, &c.dilations, &c.extra}) dims->clear();
  c.is_transposed = is_transposed;
  const size_t axes = pick(0, 3) == 0 ? 1 : 2;
  const int64_t kind = pick(0, 5);  // dense four times, grouped, depthwise
  int64_t in_channels = pick(1, 70);
  c.out_channels = pick(1, 70);
  if (kind == 4) {
    c.groups = pick(2, 4);
    in_channels = c.groups * pick(1, 20);
    c.out_channels = c.groups * pick(1, 20);
  } else if (kind == 5) {
    c.groups = in_channels;
    c.out_channels = in_channels * std::max<int64_t>(1, pick(-1, 3));
  }
  c.in = {pick(1, 2), in_channels};
  for (size_t i = 0; i < axes; ++i) {
    c.kernel.push_back(pick(1, pick(0, 3) == 0 ? 5 : 3));
    c.strides.push_back(pick(1, pick(0, 3) == 0 ? 3 : 2));
    c.dilations.push_back(pick(0, 3) == 0 ? 2 : 1);
    c.extra.push_back(is_transposed ? pick(0, c.strides.back() - 1) : 0);
    c.in.push_back(pick(1, 20) + (c.kernel.back() - 1) * c.dilations.back());
  }
  for (size_t i = 0; i < axes * 2; ++i) c.pads.push_back(pick(0, (c.kernel[i % axes] - 1) * c.dilations[i % axes]));
  if (is_transposed) {
    for (size_t i = 0; i < axes * 2; ++i) c.pads[i] = std::min(c.pads[i], (c.in[i % axes + 2] - 1) / 2);
  }
  c.has_bias = pick(0, 1) == 1;
  c.is_constant = pick(0, 4) != 0;
  c.in_blocked = pick(0, 3) != 0;
  c.out_blocked = pick(0, 3) != 0;
  c.residual = static_cast<int>(pick(0, 5));
  c.threads = static_cast<int>(pick(1, 3));
  c.same_upper = !is_transposed && pick(0, 5) == 0;
  return c;
}

TEST(Convolution, AgreesWithTheReferenceForNarrowGroups) {
  std::mt19937 random(3);
  for (int i = 0; i < 60; ++i) {
    ConvCase c = random_case(random, i % 4 == 0);
    const int64_t each = int64_t{2} << i % 3;
    c.groups = std::uniform_int_distribution<int64_t>(2, 20)(random);
    c.in[1] = c.out_channels = each * c.groups;
    c.in_blocked = c.out_blocked = true;
    for (Isa isa : isas_here()) check(c, isa, random, i % 2 == 1);
  }
}

// Sums that run along the input's channels.
TEST(Convolution, AgreesWithTheReferenceForFewOutputs) {
  std::mt19937 random(2);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 100; ++i) {
    ConvCase c = random_case(random, i % 4 == 0);
    c.groups = 1;
    c.in[1] = pick(6, 80);
    c.out_channels = pick(1, 4);
    c.in_blocked = c.out_blocked = true;
    for (Isa isa : isas_here()) check(c, isa, random, i % 2 == 1);
  }
}

TEST(Convolution, AgreesWithTheReferenceOverRandomShapes) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const ConvCase c = random_case(random, false);
    for (Isa isa : isas_here()) check(c, isa, random);
    if (HasFatalFailure()) return;
  }
}

// Three spatial axes.
ConvCase random_volumes(std::mt19937& random) {
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  ConvCase c = random_case(random, false);
  for (Dims* dims : {&c.kernel, &c.strides, &c.pads, &c.dilations, &c.extra}) dims->clear();
  const bool has_frames = pick(0, 3) > 0, has_pixels = pick(0, 3) > 0;
  c.in.resize(2);
  for (int axis = 0; axis < 3; ++axis) {
    const bool is_idle = axis == 0 ? !has_frames : !has_pixels;
    c.kernel.push_back(is_idle ? 1 : pick(1, 3));
    c.strides.push_back(is_idle && axis > 0 ? 1 : pick(1, 2));
    c.dilations.push_back(pick(0, 3) == 0 ? 2 : 1);
    c.in.push_back(pick(1, 9) + (c.kernel.back() - 1) * c.dilations.back());
  }
  for (int i = 0; i < 6; ++i) c.pads.push_back(pick(0, (c.kernel[i % 3U] - 1) * c.dilations[i % 3U]));
  return c;
}

TEST(Convolution, VolumesAgreeWithTheReferenceUnderAnyPlan) {
  std::mt19937 random(8);
  for (int i = 0; i < 200; ++i) {
    const ConvCase c = random_volumes(random);
    for (Isa isa : isas_here()) check(c, isa, random, i % 2 == 0);
    if (HasFatalFailure()) return;
  }
}

TEST(Convolution, AgreesWithTheReferenceUnderAnyPlan) {
  std::mt19937 random(5);
  for (int i = 0; i < 150; ++i) {
    const ConvCase c = random_case(random, i % 5 == 0);
    for (Isa isa : isas_here()) check(c, isa, random, true);
    if (HasFatalFailure()) return;
  }
}

// A long expression needs more temporaries than the tile leaves.
TEST(Convolution, EpiloguesThatNeedManyRegistersAgreeWithTheReference) {
  std::mt19937 random(6);
  for (Isa isa : isas_here()) {
    OneNode one;
    one.inputs = {random_tensor({1, 32, 9, 9}, random), random_tensor({64, 32, 3, 3}, random)};
    one.is_constant = {false, true};
    std::vector<int> blocks = {vector_lanes(isa), 0};
    Epilogue epilogue;
    Expression& e = epilogue.expression;
    e.inputs = {DType::f32};
    const int x = e.add({ExprOp::input, 0});
    std::vector<int> parts = {e.add({ExprOp::sigmoid, x}), e.add({ExprOp::tanh, x})};
    for (int i = 1; i <= 4; ++i) {
      one.inputs.push_back(random_tensor({1, 64, 7, 7}, random));
      one.is_constant.push_back(false);
      blocks.push_back(vector_lanes(isa));
      e.inputs.push_back(DType::f32);
      parts.push_back(e.add({ExprOp::input, i}));
    }
    std::vector<int> products;
    for (int a : parts) {
      for (int b : parts) products.push_back(e.add({ExprOp::mul, a, b}));
    }
    int sum = products.back();
    for (int product : products) sum = e.add({ExprOp::add, product, sum});
    epilogue.inputs = 4;
    one.make("Conv", 11, {}, blocks, vector_lanes(isa), epilogue);
    const Tensor expected = one.expected();
    const std::optional<Tensor> got = one.run(isa, 1);
    ASSERT_TRUE(got.has_value());
    for (int64_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], 2e-4) << "element " << i;
    }
  }
}

TEST(Convolution, TransposedAgreesWithTheReferenceOverRandomShapes) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const ConvCase c = random_case(random, true);
    for (Isa isa : isas_here()) check(c, isa, random);
    if (HasFatalFailure()) return;
  }
}

// Kernel = stride: a pointwise convolution whose results are spread over the picture.
TEST(Convolution, TransposedWithSeparateWindowsAgreesWithTheReference) {
  std::mt19937 random(22);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    ConvCase c = random_case(random, true);
    c.groups = 1;
    c.out_channels = pick(1, 12);
    for (size_t axis = 0; axis < c.kernel.size(); ++axis) {
      c.kernel[axis] = c.strides[axis] = pick(1, 4);
      c.dilations[axis] = 1;
      c.extra[axis] = 0;
      c.in[axis + 2] = pick(1, 12);
    }
    c.pads.assign(c.pads.size(), 0);
    c.out_blocked = pick(0, 3) == 0;
    c.residual = pick(0, 1) == 0 ? 0 : static_cast<int>(pick(1, 5));
    for (Isa isa : isas_here()) check(c, isa, random, pick(0, 3) == 0);
    if (HasFatalFailure()) return;
  }
}

std::vector<ConvCase> shapes_of_real_models() {
  return {
      {.in = {1, 3, 31, 30},
       .kernel = {7, 7},
       .strides = {2, 2},
       .pads = {3, 3, 3, 3},
       .out_channels = 64,
       .has_bias = true,
       .in_blocked = false,
       .threads = 2},
      {.in = {2, 3, 32, 32},
       .kernel = {16, 16},
       .strides = {16, 16},
       .out_channels = 48,
       .has_bias = true,
       .in_blocked = false},
      {.in = {3, 1, 576},
       .kernel = {256},
       .strides = {128},
       .pads = {0, 0},
       .dilations = {1},
       .extra = {0},
       .out_channels = 258,
       .in_blocked = false,
       .out_blocked = false},
      {.in = {1, 136, 14, 14}, .kernel = {1, 1}, .out_channels = 136, .groups = 4, .has_bias = true, .threads = 2},
      {.in = {1, 3, 120, 130},  // large: its rows are fetched ahead
       .kernel = {3, 3},
       .strides = {2, 2},
       .pads = {1, 1, 1, 1},
       .out_channels = 16,
       .has_bias = true,
       .in_blocked = false,
       .threads = 2},
      {.in = {1, 512, 7, 7}, .kernel = {3, 3}, .pads = {1, 1, 1, 1}, .out_channels = 64, .residual = 1, .threads = 2},
      {.in = {1, 24, 1, 1}, .kernel = {1, 1}, .out_channels = 96, .has_bias = true},
      {.in = {1, 384, 14, 14}, .kernel = {1, 1}, .out_channels = 256, .residual = 1, .threads = 2},  // shares of both
      {.in = {1, 96, 15, 15},
       .kernel = {5, 5},
       .strides = {2, 1},
       .pads = {2, 2, 2, 2},
       .out_channels = 96,
       .groups = 96,
       .has_bias = true,
       .residual = 2,
       .threads = 2},
      {.is_transposed = true,
       .in = {1, 24, 10, 12},
       .kernel = {2, 2},
       .strides = {2, 2},
       .out_channels = 24,
       .has_bias = true,
       .threads = 2},
  };
}

TEST(Convolution, AgreesWithTheReferenceOnShapesOfRealModels) {
  std::mt19937 random(3);
  for (const ConvCase& c : shapes_of_real_models()) {
    for (Isa isa : isas_here()) check(c, isa, random);
  }
}

TEST(Convolution, PicturesOfOnePixelAreRowsOfAProduct) {
  std::mt19937 random(20261128);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    ConvCase c{.in = {pick(1, 20), pick(6, 16) * 32, 1, 1}, .kernel = {1, 1}, .out_channels = pick(8, 12) * 16};
    if (pick(0, 2) == 0) c.in[1] -= 5;
    if (pick(0, 2) == 0) c.out_channels -= 3;
    c.has_bias = pick(0, 1) == 1;
    c.is_constant = pick(0, 3) > 0;
    c.in_blocked = pick(0, 2) > 0;
    c.out_blocked = pick(0, 2) > 0;
    c.residual = static_cast<int>(pick(0, 5));
    c.threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) check(c, isa, random, i % 3 == 0);
    if (HasFatalFailure()) return;
  }
}

// Of many channels, the pixels that are read are brought together first.
TEST(Convolution, PointwiseOnesOfManyChannelsTakeThePixelsOfAStride) {
  std::mt19937 random(34);
  for (const Dims& strides : {Dims{2, 2}, Dims{1, 3}, Dims{3, 1}}) {
    for (const int threads : {1, 2, 3}) {
      const ConvCase c{.in = {2, 256, 7, 10},
                       .kernel = {1, 1},
                       .strides = strides,
                       .out_channels = 272,
                       .has_bias = true,
                       .residual = 1,
                       .threads = threads};
      for (Isa isa : isas_here()) check(c, isa, random);
    }
  }
}

}  // namespace
}  // namespace lathe
