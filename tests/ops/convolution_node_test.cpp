#include <gtest/gtest.h>

#include "lathe/error.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::OneNode;
using testing::random_tensor;

TEST(Convolution, TheReferenceIsWhatTheTextSays) {
  OneNode one;
  std::mt19937 random(4);
  one.inputs = {random_tensor({1, 4, 5, 6}, random), random_tensor({6, 2, 3, 2}, random), random_tensor({6}, random)};
  one.is_constant = {false, true, true};
  Attributes attributes;
  attributes.set("group", int64_t{2});
  attributes.set("strides", Dims{2, 1});
  attributes.set("pads", Dims{1, 0, 0, 1});
  one.make("Conv", 11, attributes, {0, 0, 0}, 0);
  const Tensor got = one.expected();
  ASSERT_EQ(got.dims(), (Dims{1, 6, 2, 6}));
  const float *in = one.inputs[0].data<float>(), *w = one.inputs[1].data<float>(), *b = one.inputs[2].data<float>();
  for (int o = 0; o < 6; ++o) {
    for (int y = 0; y < 2; ++y) {
      for (int x = 0; x < 6; ++x) {
        double sum = b[o];
        for (int i = 0; i < 2; ++i) {
          for (int ky = 0; ky < 3; ++ky) {
            for (int kx = 0; kx < 2; ++kx) {
              const int iy = y * 2 + ky - 1, ix = x + kx;
              if (iy < 0 || iy >= 5 || ix >= 6) continue;
              sum += in[((o / 3 * 2 + i) * 5 + iy) * 6 + ix] * w[((o * 2 + i) * 3 + ky) * 2 + kx];
            }
          }
        }
        EXPECT_NEAR(got.data<float>()[(o * 2 + y) * 6 + x], sum, 1e-6);
      }
    }
  }
}

TEST(Convolution, NamesTheNodeWhenChannelsDoNotFit) {
  OneNode one;
  one.inputs = {Tensor(DType::f32, {1, 3, 8, 8}), Tensor(DType::f32, {4, 4, 3, 3})};
  one.is_constant = {false, true};
  try {
    one.make("Conv", 11, {}, {0, 0}, 0);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_model);
    EXPECT_STREQ(error.what(), "node 'tested' (Conv): input 0 has 3 channels, the weights expect 4");
  }
}

}  // namespace
}  // namespace lathe
