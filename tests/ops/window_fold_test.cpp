// Transposed convolutions to few planes: places of overlapping windows, added up.
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

struct FoldCase {
  Dims in, kernel, strides, pads, extra;
  int64_t planes = 1;
  bool has_bias = false, is_constant = true, in_blocked = true;
  int epilogue = 0;  // 1: without operands, 2: with a scalar
  int threads = 1;

  friend std::ostream& operator<<(std::ostream& out, const FoldCase& c) {
    return out << to_string(c.in) << " to " << c.planes << " planes, kernel " << to_string(c.kernel) << " strides "
               << to_string(c.strides) << " pads " << to_string(c.pads) << " extra " << to_string(c.extra)
               << (c.has_bias ? " bias" : "") << (c.is_constant ? "" : " dynamic")
               << (c.in_blocked ? "" : " from planes") << " epilogue " << c.epilogue << " threads " << c.threads;
  }
};

OneNode make_node(const FoldCase& c, int block, std::mt19937& random) {
  OneNode one;
  one.inputs = {random_tensor(c.in, random), random_tensor({c.in[1], c.planes, c.kernel[0], c.kernel[1]}, random),
                c.has_bias ? random_tensor({c.planes}, random) : Tensor()};
  one.is_constant = {false, c.is_constant, true};
  std::vector<int> blocks = {c.in_blocked ? block : 0, 0, 0};
  Attributes attributes;
  attributes.set("strides", c.strides);
  attributes.set("pads", c.pads);
  attributes.set("output_padding", c.extra);
  std::optional<Epilogue> epilogue;
  if (c.epilogue > 0) epilogue = clipped_sum(c.epilogue == 2);
  if (c.epilogue == 2) {
    one.inputs.push_back(random_tensor({1}, random));
    one.is_constant.push_back(false);
    blocks.push_back(0);
  }
  one.make("ConvTranspose", 11, attributes, blocks, 0, epilogue);
  return one;
}

bool folds(const OneNode& one, Isa isa) {
  PackedWeights packed;
  testing::FallbackPlans plans;
  const LoweredGraph lowered = lower_graph(one.graph, {OpRegistry::builtin(), {isa, 1}, packed, plans, nullptr});
  return std::any_of(lowered.steps.begin(), lowered.steps.end(),
                     [](const Step& step) { return step.kernel == "fold windows"; });
}

void check(const FoldCase& c, Isa isa, std::mt19937& random) {
  SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
  const OneNode one = make_node(c, vector_lanes(isa), random);
  const Tensor expected = one.expected();
  const std::optional<Tensor> got = one.run(isa, c.threads);
  ASSERT_TRUE(got.has_value()) << "the reference would run";
  ASSERT_EQ(got->dims(), expected.dims());
  // Products of values within [-1, 1]: each rounding errs by at most eps * terms.
  const double terms = static_cast<double>(c.in[1] * c.kernel[0] * c.kernel[1] + 2);
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], terms * std::sqrt(terms) * 6e-8 + 1e-6)
        << "element " << i;
  }
}

TEST(WindowFold, AgreesWithTheReferenceOverRandomShapes) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int folded = 0;
  for (int i = 0; i < 300; ++i) {
    FoldCase c{.in = {pick(1, 2), pick(8, 40), pick(1, 9), pick(1, 40)},
               .kernel = {pick(1, 7), pick(1, 7)},
               .strides = {pick(1, 3), pick(1, pick(0, 3) == 0 ? 6 : 2)},
               .pads = {},
               .extra = {},
               .planes = pick(1, 5),
               .has_bias = pick(0, 1) == 1,
               .is_constant = pick(0, 4) > 0,
               .in_blocked = pick(0, 3) > 0,
               .epilogue = static_cast<int>(pick(0, 2)),
               .threads = static_cast<int>(pick(1, 3))};
    for (size_t axis = 0; axis < 2; ++axis) c.extra.push_back(pick(0, c.strides[axis] - 1));
    for (size_t axis = 0; axis < 4; ++axis) {
      // Something is left of the output.
      const int64_t all = (c.in[2 + axis % 2] - 1) * c.strides[axis % 2] + c.kernel[axis % 2];
      c.pads.push_back(pick(0, std::min(c.kernel[axis % 2] - 1, (all - 1) / 2)));
    }
    for (const Isa isa : isas_here()) {
      check(c, isa, random);
      if (HasFatalFailure()) return;
      folded += folds(make_node(c, vector_lanes(isa), random), isa) ? 1 : 0;
    }
  }
  EXPECT_GT(folded, 100) << "other kernels were tested";
}

// Segments of rows begin and end among pixels; so do lines, which are one row.
TEST(WindowFold, CutsLongRows) {
  std::mt19937 random(3);
  const FoldCase wide{.in = {1, 16, 5, 700},
                      .kernel = {7, 7},
                      .strides = {1, 1},
                      .pads = {3, 3, 3, 3},
                      .extra = {0, 0},
                      .planes = 3,
                      .has_bias = true,
                      .epilogue = 1,
                      .threads = 2};
  FoldCase strided = wide;
  strided.kernel = {5, 6};
  strided.strides = {2, 3};
  strided.pads = {1, 2, 2, 0};
  strided.extra = {1, 2};
  for (const Isa isa : isas_here()) {
    check(wide, isa, random);
    check(strided, isa, random);
    for (const int64_t length : {1, 15, 16, 9000}) {
      OneNode line;
      line.inputs = {random_tensor({2, 24, length}, random), random_tensor({24, 1, 7}, random)};
      line.is_constant = {false, true};
      Attributes attributes;
      attributes.set("pads", Dims{3, 3});
      line.make("ConvTranspose", 11, attributes, {vector_lanes(isa), 0}, 0);
      EXPECT_TRUE(folds(line, isa));
      const Tensor expected = line.expected(), got = *line.run(isa, 2);
      for (int64_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], 1e-4) << length << " element " << i;
    }
  }
}

TEST(WindowFold, LeavesManyPlanes) {
  std::mt19937 random(2);
  for (const Isa isa : isas_here()) {
    const FoldCase few{.in = {1, 16, 6, 6}, .kernel = {4, 4}, .strides = {2, 2}, .pads = {1, 1, 1, 1}, .extra = {0, 0}};
    EXPECT_TRUE(folds(make_node(few, vector_lanes(isa), random), isa));
    FoldCase many = few;
    many.planes = 64;
    EXPECT_FALSE(folds(make_node(many, vector_lanes(isa), random), isa));
  }
}

}  // namespace
}  // namespace lathe
