// Windows over pictures smaller than they are: where taps are left out, and near misses.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

struct Window {
  Dims picture, weights;
  Ints pads, strides{1, 1}, dilations{1, 1};
  int64_t group = 1;
};

// The weights' extents behind the pass.
Dims trimmed(const Window& window) {
  PassNet net;
  Dims dims{2, 4};
  dims.insert(dims.end(), window.picture.begin(), window.picture.end());
  net.output(net.conv(
      net.input(dims), window.weights,
      {{"pads", window.pads}, {"strides", window.strides}, {"dilations", window.dilations}, {"group", window.group}}));
  const Graph graph = rewritten(net, {passes::trim_windows});
  return graph.value(graph.node(graph.order()[0]).inputs[1]).constant.dims();
}

TEST(TrimWindows, OnePixelMeetsOneTap) {
  EXPECT_EQ(trimmed({{1, 1}, {3, 4, 3, 3}, {1, 1, 1, 1}}), (Dims{3, 4, 1, 1}));
  EXPECT_EQ(trimmed({{1, 1}, {4, 1, 5, 5}, {2, 2, 2, 2}, {1, 1}, {1, 1}, 4}), (Dims{4, 1, 1, 1}));
  EXPECT_EQ(trimmed({{1, 6}, {3, 4, 3, 3}, {1, 1, 1, 1}}), (Dims{3, 4, 1, 3}));
  EXPECT_EQ(trimmed({{1}, {3, 4, 3}, {1, 1}, {1}, {1}}), (Dims{3, 4, 1}));
}

TEST(TrimWindows, PicturesSmallerThanTheDilation) {
  EXPECT_EQ(trimmed({{5, 7}, {3, 4, 3, 3}, {6, 6, 6, 6}, {1, 1}, {6, 6}}), (Dims{3, 4, 1, 3}));
  EXPECT_EQ(trimmed({{5, 5}, {3, 4, 5, 3}, {6, 3, 6, 3}, {1, 1}, {3, 3}}), (Dims{3, 4, 3, 3}));
}

TEST(TrimWindows, PadsOnOneSideAndStrides) {
  EXPECT_EQ(trimmed({{2, 2}, {3, 4, 5, 5}, {3, 3, 1, 1}}), (Dims{3, 4, 3, 3}));
  EXPECT_EQ(trimmed({{2, 2}, {3, 4, 4, 4}, {0, 0, 2, 2}, {2, 2}}), (Dims{3, 4, 2, 2}));
  EXPECT_EQ(trimmed({{3, 3}, {3, 4, 3, 3}, {1, 1, 1, 1}, {3, 3}}), (Dims{3, 4, 2, 2}));
}

TEST(TrimWindows, KeepsTapsThatMeetPixelsSomewhere) {
  EXPECT_EQ(trimmed({{2, 2}, {3, 4, 3, 3}, {1, 1, 1, 1}}), (Dims{3, 4, 3, 3}));
  EXPECT_EQ(trimmed({{7, 7}, {3, 4, 3, 3}, {6, 6, 6, 6}, {1, 1}, {6, 6}}), (Dims{3, 4, 3, 3}));
  EXPECT_EQ(trimmed({{3, 3}, {3, 4, 3, 3}, {0, 0, 0, 0}}), (Dims{3, 4, 3, 3}));
}

TEST(TrimWindows, LeavesWindowsThatStayLong) {
  EXPECT_EQ(trimmed({{16}, {4, 4, 128}, {64, 63}, {1}, {1}}), (Dims{4, 4, 31}));
  EXPECT_EQ(trimmed({{17}, {4, 4, 128}, {64, 63}, {1}, {1}}), (Dims{4, 4, 128}));
  EXPECT_EQ(trimmed({{17, 1}, {4, 4, 128, 3}, {64, 1, 63, 1}}), (Dims{4, 4, 128, 1}));
}

TEST(TrimWindows, WhatMeetsNothingIsTheBiasStill) {
  EXPECT_EQ(trimmed({{1, 1}, {3, 4, 1, 1}, {2, 2, 0, 0}, {4, 4}}), (Dims{3, 4, 1, 1}));
}

TEST(TrimWindows, LeavesExtentsThatAreNotKnown) {
  PassNet net;
  TensorType type = TensorType::of(DType::f32, {1, 4, 1, 1});
  type.dims[2] = {-1, "height"};
  net.output(net.conv(net.input(type), {3, 4, 3, 1}, {{"pads", Ints{1, 0, 1, 0}}}));
  const Graph graph = rewritten(net, {passes::trim_windows});
  EXPECT_EQ(graph.value(graph.node(graph.order()[0]).inputs[1]).constant.dims(), (Dims{3, 4, 3, 1}));
}

}  // namespace
}  // namespace lathe
