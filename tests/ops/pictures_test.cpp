// GridSample, RoiAlign, Resize and NonMaxSuppression through their lowering, against their references (in float64) or
// plain loops, over random shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OpTester;
using testing::random_tensor;

void expect_close(OpTester& tester, float bound) {
  const Tensor expected = tester.result();
  for (const Isa isa : isas_here()) {
    for (const int threads : {1, 3}) {
      const auto results = tester.lowered(isa, threads);
      ASSERT_TRUE(results.has_value()) << "the reference ran";
      ASSERT_EQ((*results)[0].dims(), expected.dims());
      for (int64_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR((*results)[0].data<float>()[i], expected.data<float>()[i], bound)
            << "element " << i << ", " << threads << " threads, " << name_of(isa);
      }
    }
  }
}

TEST(GridSample, MixesTapsInEveryMode) {
  std::mt19937 random(1);
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const int aligns : {0, 1}) {
        SCOPED_TRACE(std::string(mode) + " " + padding + " " + std::to_string(aligns));
        OpTester tester("GridSample", 20);
        tester.input(random_tensor({2, 5, 7, 9}, random))
            .input(random_tensor({2, 11, 13, 2}, random, -1.3f, 1.3f))
            .with("mode", mode)
            .with("padding_mode", padding)
            .with("align_corners", aligns);
        expect_close(tester, 3e-6f);
      }
    }
  }
}

// Far outside, at the borders, at infinity, and NaN, which counts as the begin.
TEST(GridSample, TakesPointsAnywhere) {
  std::mt19937 random(12);
  const float infinity = std::numeric_limits<float>::infinity();
  const float places[] = {-1, 1, 0, -1.125F, 1.125F, -1.3F, 1.3F, 1e30F, -1e30F, infinity, -infinity, std::nanf("")};
  const auto count = static_cast<int64_t>(std::size(places));
  Tensor grid(DType::f32, {1, count, count, 2});
  for (int64_t i = 0; i < count * count; ++i) {
    grid.mutable_data<float>()[2 * i] = places[i % count];
    grid.mutable_data<float>()[2 * i + 1] = places[i / count];
  }
  for (const Dims& dims : {Dims{1, 2, 8, 8}, Dims{1, 2, 2, 3}}) {
    for (const int aligns : {0, 1}) {
      OpTester tester("GridSample", 20);
      tester.input(random_tensor(dims, random)).input(grid).with("align_corners", aligns);
      expect_close(tester, 2e-6f);
    }
  }
}

TEST(GridSample, TakesManyPointsInGroups) {
  std::mt19937 random(2);
  OpTester tester("GridSample", 20);
  tester.input(random_tensor({1, 3, 17, 19}, random)).input(random_tensor({1, 20, 31, 2}, random, -1, 1));
  expect_close(tester, 2e-6f);
}

Tensor doubles_of(const Tensor& floats) {
  Tensor doubles(DType::f64, floats.dims());
  for (int64_t i = 0; i < floats.size(); ++i)
    doubles.mutable_data<double>()[i] = static_cast<double>(floats.data<float>()[i]) / 3;
  return doubles;
}

TEST(GridSample, TakesPlacesOfFloat64) {
  std::mt19937 random(13);
  for (const char* mode : {"nearest", "linear"}) {
    for (const char* padding : {"zeros", "border"}) {
      OpTester tester("GridSample", 20);
      tester.input(random_tensor({2, 5, 7, 9}, random))
          .input(doubles_of(random_tensor({2, 11, 13, 2}, random, -3.9f, 3.9f)))
          .with("mode", mode)
          .with("padding_mode", padding);
      expect_close(tester, 3e-6f);
    }
  }
}

Tensor boxes_of(int64_t count, float size, std::mt19937& random) {
  Tensor boxes = random_tensor({count, 4}, random, 0, size);
  for (int64_t i = 0; i < count; ++i) {
    float* box = boxes.mutable_data<float>() + 4 * i;
    box[2] += box[0];
    box[3] += box[1];
  }
  return boxes;
}

TEST(RoiAlign, TakesMeansOfSamples) {
  std::mt19937 random(3);
  for (const int ratio : {0, 1, 2}) {
    for (const char* transform : {"half_pixel", "output_half_pixel"}) {
      for (const int64_t channels : {3, 16, 37}) {
        OpTester tester("RoiAlign", 16);
        tester.input(random_tensor({2, channels, 13, 17}, random))
            .input(boxes_of(5, 40, random))
            .input(testing::longs({1, 0, 0, 1, 1}))
            .with("output_height", 3)
            .with("output_width", 5)
            .with("sampling_ratio", ratio)
            .with("spatial_scale", 0.25f)
            .with("coordinate_transformation_mode", transform);
        expect_close(tester, 3e-6f);
      }
    }
  }
}

TEST(RoiAlign, RefusesAnImageThatIsNotThere) {
  std::mt19937 random(4);
  OpTester tester("RoiAlign", 16);
  tester.input(random_tensor({2, 3, 8, 8}, random)).input(boxes_of(1, 8, random)).input(testing::longs({2}));
  EXPECT_THROW(tester.lowered(Isa::avx2, 1), Error);
}

TEST(Resize, TakesPlainPicturesAndChannelsBehindThem) {
  std::mt19937 random(5);
  const Dims sizes[][2] = {{{2, 3, 7, 9}, {2, 3, 14, 18}},
                           {{1, 3, 7, 9}, {1, 3, 5, 20}},
                           {{1, 3, 8, 9}, {1, 3, 8, 21}},
                           {{1, 3, 8, 9}, {1, 3, 20, 9}},
                           {{2, 7, 9, 5}, {2, 14, 11, 5}},
                           {{1, 6, 8, 1}, {1, 9, 12, 1}},
                           {{3, 17}, {3, 34}},
                           {{2, 3, 16}, {2, 3, 32}},
                           {{4, 5, 6}, {4, 5, 6}},
                           {{1, 4, 6, 7}, {1, 8, 12, 7}},
                           {{2, 3, 5, 16}, {2, 3, 10, 67}},
                           {{1, 2, 20, 30}, {1, 2, 33, 41}}};
  for (const auto& [from, to] : sizes) {
    for (const char* mode : {"nearest", "linear"}) {
      for (const char* coordinates : {"half_pixel", "asymmetric", "align_corners"}) {
        SCOPED_TRACE(to_string(from) + " to " + to_string(to) + " " + mode + " " + coordinates);
        Tensor wanted(DType::i64, {static_cast<int64_t>(to.size())});
        std::copy(to.begin(), to.end(), wanted.mutable_data<int64_t>());
        OpTester tester("Resize", 19);
        tester.input(random_tensor(from, random)).absent().absent().constant(wanted);
        tester.with("mode", mode).with("coordinate_transformation_mode", coordinates);
        expect_close(tester, 1e-6f);
      }
    }
  }
}

Tensor longs_of(const Dims& dims) {
  Tensor wanted(DType::i64, {static_cast<int64_t>(dims.size())});
  std::copy(dims.begin(), dims.end(), wanted.mutable_data<int64_t>());
  return wanted;
}

TEST(Resize, TakesVolumesAndAnyAxes) {
  std::mt19937 random(6);
  const Dims sizes[][2] = {
      {{2, 3, 4, 7, 9}, {2, 3, 8, 14, 18}}, {{1, 2, 5, 6, 7}, {1, 2, 3, 13, 4}}, {{3, 4, 5}, {6, 9, 11}},
      {{2, 3, 5, 4}, {4, 3, 7, 4}},         {{1, 2, 4, 4, 6}, {1, 2, 8, 4, 6}},  {{4, 6, 5, 3}, {2, 3, 10, 3}}};
  for (const auto& [from, to] : sizes) {
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      SCOPED_TRACE(to_string(from) + " to " + to_string(to) + " " + mode);
      OpTester tester("Resize", 19);
      tester.input(random_tensor(from, random)).absent().absent().constant(longs_of(to));
      tester.with("mode", mode);
      expect_close(tester, 2e-6f);
    }
  }
}

TEST(Resize, TakesCubicAndAntialiasedPictures) {
  std::mt19937 random(7);
  const Dims sizes[][2] = {{{2, 3, 7, 9}, {2, 3, 14, 18}}, {{1, 3, 19, 31}, {1, 3, 5, 7}}, {{1, 40, 33}, {1, 40, 8}}};
  for (const auto& [from, to] : sizes) {
    for (const int antialias : {0, 1}) {
      for (const char* mode : {"linear", "cubic"}) {
        SCOPED_TRACE(to_string(from) + " to " + to_string(to) + " " + mode);
        OpTester tester("Resize", 19);
        tester.input(random_tensor(from, random)).absent().absent().constant(longs_of(to));
        tester.with("mode", mode).with("antialias", antialias).with("exclude_outside", 1);
        expect_close(tester, 2e-6f);
      }
    }
  }
}

TEST(Resize, TakesBytesAndOtherTypes) {
  std::mt19937 random(8);
  const Dims sizes[][2] = {{{1, 3, 8, 10}, {1, 3, 16, 20}},
                           {{1, 6, 12, 3}, {1, 12, 24, 3}},
                           {{2, 3, 5}, {4, 3, 10}},
                           {{1, 2, 6, 37}, {1, 2, 12, 91}},
                           {{3, 60}, {3, 25}},
                           {{2, 33}, {2, 66}}};
  for (const DType dtype : {DType::u8, DType::i8, DType::i32, DType::i64, DType::f16}) {
    for (const auto& [from, to] : sizes) {
      for (const char* mode : {"nearest", "linear"}) {
        if (mode == std::string("linear") && dtype != DType::u8 && dtype != DType::i8) continue;
        SCOPED_TRACE(to_string(from) + " to " + to_string(to) + " " + mode + " of " + std::string(name_of(dtype)));
        Tensor x(dtype, from);
        for (int64_t i = 0; i < x.size(); ++i) store_real(x, i, static_cast<double>(random() % 128));
        OpTester tester("Resize", 19);
        tester.input(x).absent().absent().constant(longs_of(to)).with("mode", mode);
        const auto made = tester.lowered(Isa::avx2, 2);
        ASSERT_TRUE(made);
        const Tensor expected = tester.result();
        ASSERT_EQ((*made)[0].dims(), expected.dims());
        // The reference cuts off what its own rounding leaves of an integer.
        const double bound = mode == std::string("linear") ? 1 : 0;
        const std::vector<double> got = reals_of((*made)[0]), wanted = reals_of(expected);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], bound) << i;
      }
    }
  }
}

TEST(GlobalPools, TakePlainPictures) {
  std::mt19937 random(7);
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool"}) {
    for (const Dims& dims : {Dims{2, 3, 7, 7}, Dims{1, 5, 40}, Dims{3, 2, 4, 5, 6}, Dims{1, 37, 1, 1}}) {
      SCOPED_TRACE(std::string(op) + " " + to_string(dims));
      OpTester tester(op, 13);
      tester.input(random_tensor(dims, random));
      expect_close(tester, 1e-6f);
    }
  }
}

TEST(InstanceNormalization, TakesSmallPlanesTogether) {
  std::mt19937 random(8);
  for (const Dims& dims : {Dims{2, 67, 7, 7}, Dims{1, 5, 80, 80}, Dims{3, 4, 1, 3}}) {
    SCOPED_TRACE(to_string(dims));
    OpTester tester("InstanceNormalization", 13);
    tester.input(random_tensor(dims, random, -3, 5))
        .input(random_tensor({dims[1]}, random))
        .input(random_tensor({dims[1]}, random));
    expect_close(tester, 1e-5f);
  }
}

// The rule as the text has it, pair by pair.
std::vector<int64_t> kept_boxes(const Tensor& boxes, const Tensor& scores, int64_t most, float iou, float least) {
  const auto area = [&](const float* box) { return (box[2] - box[0]) * (box[3] - box[1]); };
  std::vector<int64_t> result;
  const int64_t count = boxes.dims()[1];
  for (int64_t c = 0; c < scores.dims()[1]; ++c) {
    const float* score = scores.data<float>() + c * count;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) {
      if (score[i] > least) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
    std::vector<int64_t> kept;
    for (const int64_t i : order) {
      const float* a = boxes.data<float>() + 4 * i;
      const bool is_covered = std::any_of(kept.begin(), kept.end(), [&](int64_t k) {
        const float* b = boxes.data<float>() + 4 * k;
        const float height = std::min(a[2], b[2]) - std::max(a[0], b[0]);
        const float width = std::min(a[3], b[3]) - std::max(a[1], b[1]);
        return height > 0 && width > 0 && height * width / (area(a) + area(b) - height * width) > iou;
      });
      if (is_covered || static_cast<int64_t>(kept.size()) >= most) continue;
      kept.push_back(i);
      result.insert(result.end(), {0, c, i});
    }
  }
  return result;
}

TEST(NonMaxSuppression, KeepsTheBestOfWhatOverlaps) {
  std::mt19937 random(6);
  for (const int64_t most : {1, 7, 1000}) {
    const Tensor boxes = boxes_of(300, 20, random).reshaped({1, 300, 4});
    Tensor scores = random_tensor({1, 3, 300}, random, 0, 1);
    for (int64_t i = 0; i < scores.size(); i += 3) scores.mutable_data<float>()[i] = 0.5f;  // equal ones
    OpTester tester("NonMaxSuppression", 11);
    tester.input(boxes)
        .input(scores)
        .constant(testing::longs({most}))
        .constant(testing::floats({0.4f}))
        .constant(testing::floats({0.2f}));
    EXPECT_EQ(testing::list<int64_t>(tester.result()), kept_boxes(boxes, scores, most, 0.4f, 0.2f));
  }
}

// Many boxes, so that those far away are not looked at: of one picture, moved aside class by class, with one as wide as
// all, and with places that are no numbers.
TEST(NonMaxSuppression, FindsOverlapsAmongMany) {
  std::mt19937 random(9);
  constexpr int64_t kCount = 3000;
  for (const std::string place : {"one picture", "classes", "wide", "broken"}) {
    SCOPED_TRACE(place);
    Tensor boxes = boxes_of(kCount, 200, random).reshaped({1, kCount, 4});
    float* corner = boxes.mutable_data<float>();
    for (int64_t i = 0; i < kCount && place == "classes"; ++i) {
      for (int64_t k = 0; k < 4; ++k) corner[4 * i + k] += static_cast<float>(i % 40) * 201 - 3000;
    }
    if (place == "wide") corner[1] = -1e4f, corner[3] = 1e4f;
    if (place == "broken") {
      corner[1] = std::numeric_limits<float>::quiet_NaN();
      corner[4 * 7 + 3] = std::numeric_limits<float>::infinity();
      corner[4 * 8 + 1] = -std::numeric_limits<float>::infinity();
    }
    const Tensor scores = random_tensor({1, 1, kCount}, random, 0, 1);
    OpTester tester("NonMaxSuppression", 11);
    tester.input(boxes)
        .input(scores)
        .constant(testing::longs({kCount}))
        .constant(testing::floats({0.1f}))
        .constant(testing::floats({0.0f}));
    const auto kept = testing::list<int64_t>(tester.result());
    EXPECT_EQ(kept, kept_boxes(boxes, scores, kCount, 0.1f, 0.0f));
    EXPECT_LT(kept.size(), size_t{3} * kCount);
  }
}

}  // namespace
}  // namespace lathe
