#include "ops/conv/conv_volume.h"

#include <algorithm>
#include <utility>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_node.h"

namespace lathe {
namespace {

bool is_dense(const ConvAxis& axis) {
  for (size_t i = 1; i < axis.taps.size(); ++i) {
    if (axis.taps[i].offset != axis.taps[i - 1].offset + 1) return false;
  }
  return true;
}

// The frames from the first to the last that any window covers, one time each.
std::vector<int64_t> covered_frames(const ConvAxis& z) {
  std::vector<int64_t> frames;
  const int64_t count = (z.out - 1) * z.stride + static_cast<int64_t>(z.taps.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t frame = i + z.taps[0].offset;
    frames.push_back(frame >= 0 && frame < z.in ? frame : -1);
  }
  return frames;
}

// Those of each window.
std::vector<int64_t> frames_by_window(const ConvAxis& z) {
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < z.out; ++i) {
    for (const ConvTap& tap : z.taps) {
      const int64_t frame = i * z.stride + tap.offset;
      frames.push_back(frame >= 0 && frame < z.in ? frame : -1);
    }
  }
  return frames;
}

// Puts the frames of the window into the place of one; `taps`: of them.
void list_frames(const ConvAxis& z, int64_t taps, VolumeConv& volume) {
  ConvFrames& frames = volume.problem.frames;
  const bool overlap = is_dense(z);
  volume.frames.frames = overlap ? covered_frames(z) : frames_by_window(z);
  frames.in = static_cast<int64_t>(volume.frames.frames.size());
  frames.step = overlap ? z.stride : taps;
}

void join_frames(const ConvAxis& z, VolumeConv& volume) {
  ConvProblem& problem = volume.problem;
  problem.frames.joined = static_cast<int64_t>(z.taps.size());
  problem.frames.are_outer = true;
  problem.in_channels *= problem.frames.joined;
  list_frames(z, problem.frames.joined, volume);
}

// Frames among rows of zeros, so that no window reaches from one into the next.
void stack_frames(const ConvAxis& z, VolumeConv& volume) {
  ConvProblem& problem = volume.problem;
  ConvAxis& y = problem.phases[0].y;
  const auto taps = static_cast<int64_t>(z.taps.size());
  problem.frames.stacked = taps;
  list_frames(z, taps, volume);
  FrameOrder& order = volume.frames;
  const std::vector<ConvTap> rows = std::exchange(y.taps, {});
  order.top = std::max<int64_t>(0, -rows.front().offset);
  order.bottom = std::max<int64_t>(0, (y.out - 1) * y.stride + rows.back().offset - (y.in - 1));
  const int64_t height = order.top + y.in + order.bottom;
  for (int64_t frame = 0; frame < taps; ++frame) {
    for (const ConvTap& row : rows) {
      const auto kernel = static_cast<int>(frame * problem.window_y + row.kernel);
      y.taps.push_back({kernel, frame * height + order.top + row.offset});
    }
  }
  y.in = height * taps;
  problem.window_y *= taps;
}

}  // namespace

VolumeConv volume_conv_of(const LowerContext& context) {
  const Dims in = context.input_type(0).extents();
  const ConvNode conv = read_conv(context.node, in, context.input_type(1).extents());
  const ConvSizes& sizes = conv.sizes;
  const ConvAxis z = conv_axis(conv.window, 0, sizes.in[0], sizes.out[0]);
  ConvShape shape;
  shape.y = conv_axis(conv.window, 1, sizes.in[1], sizes.out[1]);
  shape.x = conv_axis(conv.window, 2, sizes.in[2], sizes.out[2]);
  VolumeConv volume;
  ConvProblem& problem = volume.problem;
  problem.batch = sizes.batch;
  problem.in_channels = sizes.in_channels;
  problem.out_channels = sizes.out_channels;
  problem.groups = sizes.groups;
  problem.window_y = conv.window.kernel[1];
  problem.window_x = conv.window.kernel[2];
  if (is_idle(shape.y) && is_idle(shape.x)) {
    // Frames are the rows of a picture whose columns are all their pixels.
    shape.x.in = shape.x.out = shape.x.out_extent = shape.y.in * shape.x.in;
    shape.y = z;
    problem.window_y = conv.window.kernel[0];
    problem.phases = {shape};
    return volume;
  }
  problem.phases = {shape};
  problem.batch *= z.out;
  problem.frames.out = z.out;
  if (z.taps.size() == 1 && z.taps[0].offset == 0 && (z.out - 1) * z.stride < z.in) {
    problem.frames.in = z.in;
    problem.frames.step = z.stride;
  } else if (sizes.groups == 1) {
    join_frames(z, volume);
  } else {
    stack_frames(z, volume);
  }
  return volume;
}

std::vector<float> joined_weights(const float* weights, int64_t in_channels, const ConvProblem& problem) {
  const int64_t window = problem.window_y * problem.window_x, frames = problem.frames.joined;
  const int64_t padded = problem.in_channels / frames;
  std::vector<float> joined(static_cast<size_t>(problem.out_channels * problem.in_channels * window), 0.0F);
  for (int64_t out = 0; out < problem.out_channels; ++out) {
    for (int64_t in = 0; in < in_channels; ++in) {
      for (int64_t frame = 0; frame < frames; ++frame, weights += window) {
        const int64_t to = (out * problem.in_channels + frame * padded + in) * window;
        std::copy(weights, weights + window, joined.begin() + to);
      }
    }
  }
  return joined;
}

}  // namespace lathe
