// Linear, cubic and antialiased Resize by generated code against the reference: random pictures, modes and layouts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::OpTester;
using testing::random_tensor;

constexpr const char* kCoordinates[] = {"half_pixel",    "half_pixel_symmetric", "pytorch_half_pixel",
                                        "align_corners", "asymmetric",           "tf_half_pixel_for_nn"};

Tensor ints(const Dims& dims) {
  Tensor wanted(DType::i64, {static_cast<int64_t>(dims.size())});
  std::copy(dims.begin(), dims.end(), wanted.mutable_data<int64_t>());
  return wanted;
}

struct RandomMode {
  std::string mode, coordinates;
  float cubic = -0.75F;
  int antialias = 0, exclude_outside = 0;

  explicit RandomMode(std::mt19937& random)
      : mode(random() % 2 == 0 ? "linear" : "cubic"),
        coordinates(kCoordinates[random() % std::size(kCoordinates)]),
        cubic(random() % 2 == 0 ? -0.75F : -0.5F),
        antialias(random() % 3 == 0),
        exclude_outside(random() % 3 == 0) {}
  std::string text() const {
    return mode + " " + coordinates + " a " + std::to_string(cubic) + " antialias " + std::to_string(antialias) +
           " exclude_outside " + std::to_string(exclude_outside);
  }
};

int64_t random_extent(std::mt19937& random, int64_t most) {
  return 1 + static_cast<int64_t>(random() % static_cast<size_t>(most));
}

// How large sums may be, and with them their errors: antialiasing may divide by a sum of weights that is small.
void expect_near(const Tensor& got, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.dims(), expected.dims()) << what;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const float wanted = expected.data<float>()[i];
    ASSERT_NEAR(got.data<float>()[i], wanted, 4e-6F * (1 + std::abs(wanted))) << what << ", element " << i;
  }
}

TEST(MixedResize, MatchesItsReferenceOverRandomAxes) {
  std::mt19937 random(1);
  for (int round = 0; round < 250; ++round) {
    const RandomMode mode(random);
    Dims from, to;
    for (int64_t rank = 1 + static_cast<int64_t>(random() % 5), axis = 0; axis < rank; ++axis) {
      from.push_back(random_extent(random, axis + 2 < rank ? 4 : 40));
      to.push_back(random() % 3 == 0 ? from.back() : random_extent(random, axis + 2 < rank ? 6 : 70));
    }
    OpTester tester("Resize", 19);
    tester.input(random_tensor(from, random)).absent().absent().constant(ints(to));
    tester.with("mode", mode.mode.c_str()).with("coordinate_transformation_mode", mode.coordinates.c_str());
    tester.with("antialias", mode.antialias).with("exclude_outside", mode.exclude_outside);
    tester.with("cubic_coeff_a", mode.cubic);
    const Tensor expected = tester.result();
    for (const Isa isa : isas_here()) {
      for (const int threads : {1, 3}) {
        const auto results = tester.lowered(isa, threads);
        const std::string what =
            to_string(from) + " to " + to_string(to) + " " + mode.text() + " " + std::string(name_of(isa));
        ASSERT_TRUE(results.has_value()) << "the reference ran: " << what;
        expect_near((*results)[0], expected, what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More rows than a band keeps near, so that rows mixed along themselves take each other's places.
TEST(MixedResize, MatchesItsReferenceOverTallPictures) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const RandomMode mode(random);
    const Dims from = {1, 1, 300 + random_extent(random, 200), 30 + random_extent(random, 10)};
    const Dims to = {1, 1, 500 + random_extent(random, 600), 30 + random_extent(random, 10)};
    OpTester tester("Resize", 19);
    tester.input(random_tensor(from, random)).absent().absent().constant(ints(to));
    tester.with("mode", mode.mode.c_str()).with("coordinate_transformation_mode", mode.coordinates.c_str());
    tester.with("antialias", mode.antialias).with("cubic_coeff_a", mode.cubic);
    const Tensor expected = tester.result();
    for (const Isa isa : isas_here()) {
      const auto results = tester.lowered(isa, 2);
      ASSERT_TRUE(results.has_value());
      expect_near((*results)[0], expected, to_string(from) + " to " + to_string(to) + " " + mode.text());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MixedResize, MatchesItsReferenceInChannelBlocks) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const RandomMode mode(random);
    const bool has_rows = random() % 4 != 0;
    const int64_t channels = random_extent(random, 40);
    Dims from = {2, channels, random_extent(random, 12)}, to = {2, channels, random_extent(random, 30)};
    if (has_rows) {
      from.push_back(random_extent(random, 20));
      to.push_back(random_extent(random, 40));
    }
    for (const Isa isa : isas_here()) {
      for (const int block : {8, 16}) {
        OneNode tested;
        tested.inputs = {random_tensor(from, random), Tensor(), Tensor(), ints(to)};
        tested.is_constant = {false, true, true, true};
        Attributes attributes;
        attributes.set("mode", mode.mode);
        attributes.set("coordinate_transformation_mode", mode.coordinates);
        attributes.set("antialias", int64_t{mode.antialias});
        attributes.set("exclude_outside", int64_t{mode.exclude_outside});
        attributes.set("cubic_coeff_a", mode.cubic);
        tested.make("Resize", 19, attributes, {block, 0, 0, 0}, block);
        const std::optional<Tensor> result = tested.run(isa, 2);
        const std::string what =
            to_string(from) + " to " + to_string(to) + " " + mode.text() + " " + std::string(name_of(isa));
        ASSERT_TRUE(result.has_value()) << what;
        expect_near(*result, tested.expected(), what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(MixedResize, TakesBytesOfEveryShape) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const DType dtype = random() % 2 == 0 ? DType::u8 : DType::i8;
    const RandomMode mode(random);
    const int64_t lanes = random() % 3 == 0 ? random_extent(random, 20) : 1;
    const Dims from = {2, random_extent(random, 30), random_extent(random, 40), lanes};
    const Dims to = {2, random_extent(random, 40), random() % 3 == 0 ? from[2] : random_extent(random, 90), lanes};
    OpTester tester("Resize", 19);
    tester.input(testing::random_bytes(dtype, from, random)).absent().absent().constant(ints(to));
    tester.with("mode", mode.mode.c_str()).with("coordinate_transformation_mode", mode.coordinates.c_str());
    tester.with("antialias", mode.antialias);
    const Tensor expected = tester.result();
    for (const Isa isa : isas_here()) {
      const auto results = tester.lowered(isa, 2);
      ASSERT_TRUE(results.has_value());
      for (int64_t i = 0; i < expected.size(); ++i) {
        // The reference cuts off what its own rounding leaves of an integer; results wrap.
        const auto apart = static_cast<int8_t>(static_cast<const uint8_t*>((*results)[0].raw())[i] -
                                               static_cast<const uint8_t*>(expected.raw())[i]);
        ASSERT_LE(std::abs(apart), 1) << to_string(from) << " to " << to_string(to) << " " << mode.text() << " "
                                      << name_of(isa) << ", element " << i;
      }
    }
  }
}

TEST(MixedResize, MakesNothingOfNothing) {
  for (const char* mode : {"linear", "cubic"}) {
    for (const auto& [from, to] :
         {std::pair<Dims, Dims>{{0, 3, 8, 8}, {0, 3, 16, 16}}, {{1, 3, 8, 8}, {1, 3, 0, 16}}}) {
      OpTester tester("Resize", 19);
      tester.input(Tensor(DType::f32, from)).absent().absent().constant(ints(to)).with("mode", mode);
      for (const Isa isa : isas_here()) {
        const auto results = tester.lowered(isa, 2);
        ASSERT_TRUE(results.has_value());
        EXPECT_EQ((*results)[0].dims(), to);
      }
    }
  }
}

// Results that do not read an infinity are finite.
TEST(MixedResize, KeepsInfinitiesAmongTheirNeighbours) {
  std::mt19937 random(4);
  for (const char* mode : {"linear", "cubic"}) {
    for (const char* coordinates : {"half_pixel", "align_corners", "asymmetric"}) {
      Tensor x = random_tensor({1, 2, 9, 21}, random);
      for (const int64_t at : {0, 20, 100, 250}) x.mutable_data<float>()[at] = std::numeric_limits<float>::infinity();
      OpTester tester("Resize", 19);
      tester.input(x).absent().absent().constant(ints({1, 2, 25, 41}));
      tester.with("mode", mode).with("coordinate_transformation_mode", coordinates);
      const Tensor expected = tester.result();
      for (const Isa isa : isas_here()) {
        const auto results = tester.lowered(isa, 2);
        ASSERT_TRUE(results.has_value());
        for (int64_t i = 0; i < expected.size(); ++i) {
          const float wanted = expected.data<float>()[i];
          if (std::isfinite(wanted)) {
            ASSERT_NEAR((*results)[0].data<float>()[i], wanted, 4e-6F) << mode << " " << coordinates << " " << i;
          } else {
            ASSERT_FALSE(std::isfinite((*results)[0].data<float>()[i])) << mode << " " << coordinates << " " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
