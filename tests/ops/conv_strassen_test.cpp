// Pointwise convolutions by Strassen's products, through the lowering of a node.
#include "ops/conv/conv_strassen.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/ops/core_rates.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

// The fallback, by Strassen's products where they are possible.
class StrassenPlans : public PlanSource {
 public:
  Candidate choose(const TuningTask& task) override {
    Candidate candidate = task.space.fallback;
    candidate["strassen"] = 1;
    if (!task.space.allowed(candidate)) return task.space.fallback;
    ++used;
    return candidate;
  }
  int used = 0;
};

struct PointwiseCase {
  int64_t batch, in_channels, out_channels, height, width;
  bool has_bias, has_residual;
  int threads;
  int64_t stride = 1;
};
std::ostream& operator<<(std::ostream& out, const PointwiseCase& c) {
  return out << c.batch << "x" << c.in_channels << ">" << c.out_channels << " " << c.height << "x" << c.width
             << (c.has_bias ? " bias" : "") << (c.has_residual ? " residual" : "") << " threads " << c.threads
             << " stride " << c.stride;
}

// max(x (+ residual), 0)
OneNode make_node(const PointwiseCase& c, int lanes, std::mt19937& random) {
  OneNode one;
  one.inputs = {random_tensor({c.batch, c.in_channels, c.height, c.width}, random),
                random_tensor({c.out_channels, c.in_channels, 1, 1}, random),
                c.has_bias ? random_tensor({c.out_channels}, random) : Tensor()};
  one.is_constant = {false, true, true};
  std::vector<int> blocks = {lanes, 0, 0};
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  int x = e.add({ExprOp::input, 0});
  if (c.has_residual) {
    one.inputs.push_back(
        random_tensor({c.batch, c.out_channels, (c.height - 1) / c.stride + 1, (c.width - 1) / c.stride + 1}, random));
    one.is_constant.push_back(false);
    blocks.push_back(lanes);
    e.inputs.push_back(DType::f32);
    x = e.add({ExprOp::add, x, e.add({ExprOp::input, 1})});
    epilogue.inputs = 1;
  }
  e.add({ExprOp::max, x, e.add({.op = ExprOp::constant, .value = 0})});
  Attributes attributes;
  attributes.set("strides", Dims{c.stride, c.stride});
  one.make("Conv", 11, attributes, blocks, lanes, epilogue);
  return one;
}

// On every instruction set, with one node by block products.
void expect_agreement(const PointwiseCase& c, std::mt19937& random) {
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
    const OneNode one = make_node(c, vector_lanes(isa), random);
    StrassenPlans plans;
    const Tensor expected = one.expected();
    const std::optional<Tensor> got = one.run(isa, c.threads, plans);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(plans.used, 1);
    const double terms = static_cast<double>(c.in_channels);
    for (int64_t k = 0; k < expected.size(); ++k)
      ASSERT_NEAR(got->data<float>()[k], expected.data<float>()[k], terms * std::sqrt(terms) * 2e-7) << "element " << k;
  }
}

TEST(StrassenConvolution, AgreesWithTheReferenceOverRandomShapes) {
  std::mt19937 random(31);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  StrassenPlans plans;
  int cases = 0;
  for (int i = 0; i < 25; ++i) {
    for (const Isa isa : isas_here()) {
      const int lanes = vector_lanes(isa);
      const PointwiseCase c{pick(1, 2),  pick(1, 4) * 2 * lanes, pick(1, 3) * 4 * lanes, pick(1, 20),
                            pick(1, 30), pick(0, 1) == 1,        pick(0, 1) == 1,        static_cast<int>(pick(1, 3))};
      SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
      const OneNode one = make_node(c, lanes, random);
      const Tensor expected = one.expected();
      const std::optional<Tensor> got = one.run(isa, c.threads, plans);
      ASSERT_TRUE(got.has_value());
      const double terms = static_cast<double>(c.in_channels);
      for (int64_t k = 0; k < expected.size(); ++k)
        ASSERT_NEAR(got->data<float>()[k], expected.data<float>()[k], terms * std::sqrt(terms) * 2e-7)
            << "element " << k;
      cases += c.height * c.width > 1;
    }
  }
  EXPECT_EQ(plans.used, cases);
}

// Halves and thirds, several pieces for each thread or one for all of them, pieces and tiles of unequal height, and
// channels so far apart that the sums are made channel by channel.
TEST(StrassenConvolution, AgreesWithTheReferenceForManyPixelsAndThirds) {
  std::mt19937 random(33);
  const PointwiseCase cases[] = {
      {1, 96, 192, 46, 46, true, false, 1},  {1, 96, 192, 46, 46, true, true, 3},  {1, 48, 96, 7, 8, false, true, 2},
      {2, 144, 192, 5, 22, true, true, 1},   {3, 384, 96, 32, 32, true, false, 2}, {1, 64, 128, 64, 64, true, true, 1},
      {1, 64, 128, 64, 64, false, false, 2}, {1, 96, 128, 61, 53, true, false, 1}, {1, 480, 96, 2, 7, true, false, 1},
      {1, 96, 160, 9, 14, true, true, 1},    {2, 96, 240, 6, 8, true, false, 1},   {1, 96, 96, 64, 32, true, true, 1},
      {2, 192, 288, 17, 40, true, true, 2},  {1, 288, 1152, 6, 6, true, true, 2},  {1, 288, 1152, 5, 5, true, false, 3},
  };
  for (const PointwiseCase& c : cases) expect_agreement(c, random);
}

TEST(StrassenConvolution, TakesThePixelsOfAStrideFirst) {
  std::mt19937 random(32);
  for (const PointwiseCase& c :
       {PointwiseCase{1, 256, 256, 28, 29, true, true, 1, 2}, PointwiseCase{2, 256, 320, 27, 23, true, false, 1, 2},
        PointwiseCase{1, 256, 256, 40, 41, false, true, 1, 3}, PointwiseCase{2, 256, 320, 27, 23, true, true, 3, 2}})
    expect_agreement(c, random);
}

ConvProblem pointwise(int64_t in_channels, int64_t out_channels, int64_t pixels, int lanes) {
  ConvProblem problem;
  problem.in_channels = in_channels;
  problem.out_channels = out_channels;
  problem.lanes = lanes;
  ConvShape shape;
  shape.x.in = shape.x.out = shape.x.out_extent = pixels;
  shape.lanes = lanes;
  problem.phases = {shape};
  return problem;
}

TEST(StrassenConvolution, IsForPointwiseOnesAtAnAccuracyThatAllowsIt) {
  const Isa isa = usable_isa();
  const int lanes = vector_lanes(isa);
  ConvProblem problem = pointwise(int64_t{16} * lanes, int64_t{16} * lanes, 196, lanes);
  EXPECT_TRUE(is_strassen(problem, isa));
  problem.most_winograd = 2;
  EXPECT_FALSE(is_strassen(problem, isa));
  problem.most_winograd = 4;
  problem.in_channels += lanes;
  EXPECT_FALSE(is_strassen(problem, isa));
  problem.in_channels -= lanes;
  problem.phases[0].x.stride = 2;
  EXPECT_FALSE(is_strassen(problem, isa));
}

TEST(StrassenConvolution, IsPreferredWhereAdditionsAreHiddenBehindManyProducts) {
  const auto prefers = [](int64_t in, int64_t out, int64_t pixels, int threads, const CoreRates& rates) {
    return prefers_strassen(pointwise(in, out, pixels, 16), Isa::avx512, threads, rates);
  };
  EXPECT_TRUE(prefers(256, 1024, 196, 1, kZen4));
  EXPECT_FALSE(prefers(64, 256, 3136, 1, kZen4));   // few steps of k between two visits to C
  EXPECT_FALSE(prefers(512, 512, 36, 1, kZen4));    // few pixels
  EXPECT_FALSE(prefers(256, 1024, 196, 2, kZen4));  // both threads wait for all weights
  EXPECT_TRUE(prefers(384, 384, 240, 2, kZen4));
  EXPECT_TRUE(prefers(512, 512, 784, 2, kZen4));
}

// As measured on a Zen 5.
TEST(StrassenConvolution, IsPreferredBesideTwoMultipliersInWideTilesOfPackedSums) {
  const auto prefers = [](int64_t in, int64_t out, int64_t pixels, int threads) {
    return prefers_strassen(pointwise(in, out, pixels, 16), Isa::avx512, threads, kZen5);
  };
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(prefers(512, 512, 784, threads));
    EXPECT_TRUE(prefers(256, 1024, 196, threads));
    EXPECT_TRUE(prefers(480, 480, 480, threads));
    EXPECT_FALSE(prefers(512, 512, 49, threads)) << "packed sums are of an even number of pixels";
    EXPECT_FALSE(prefers(256, 128, 784, threads)) << "few columns";
    EXPECT_FALSE(prefers(256, 256, 100, threads)) << "tiles of few rows are not full";
    EXPECT_FALSE(prefers(960, 160, 196, threads)) << "tiles of a single vector";
  }
}

}  // namespace
}  // namespace lathe
