#include "ops/conv_volume.h"

#include <algorithm>

#include "ops/conv_axes.h"
#include "ops/conv_node.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// A window of one pixel that moves to each: the axis plays no part.
bool is_idle(const ConvAxis& axis) { return axis.taps == ConvAxis().taps && axis.stride == 1 && axis.in == axis.out; }

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

void join_frames(const ConvAxis& z, VolumeConv& volume) {
  ConvFrames& frames = volume.problem.frames;
  const auto taps = static_cast<int64_t>(z.taps.size());
  frames.out = z.out;
  frames.joined = taps;
  if (taps == 1 && z.taps[0].offset == 0 && (z.out - 1) * z.stride < z.in) {
    frames.in = z.in;
    frames.step = z.stride;
    return;
  }
  const bool overlap = is_dense(z);
  volume.frames = overlap ? covered_frames(z) : frames_by_window(z);
  frames.in = static_cast<int64_t>(volume.frames.size());
  frames.step = overlap ? z.stride : taps;
  frames.are_outer = true;
}

}  // namespace

std::optional<VolumeConv> volume_conv_of(const LowerContext& context) {
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
  } else {
    if (conv.window.kernel[0] > 1 && sizes.groups > 1) return std::nullopt;
    problem.batch *= z.out;
    problem.in_channels *= conv.window.kernel[0];
    join_frames(z, volume);
  }
  problem.phases = {shape};
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

Step take_frames_step(BufferId source, BufferId target, const FrameOrder& order, const std::vector<int64_t>& frames,
                      int threads) {
  const int64_t blocks = divide_up(order.channels, order.lanes), floats = order.pixels * order.lanes;
  const auto all = static_cast<int64_t>(frames.size());
  const int64_t in_last = order.channels - (blocks - 1) * order.lanes;  // channels
  Step step;
  step.kernel = "take frames";
  step.reads = {source};
  step.writes = {target};
  step.threads = threads;
  step.bytes = 8.0 * static_cast<double>(order.volumes * all * blocks * floats);
  step.run = [=](const StepArgs& args) {
    const Range range = split_evenly(static_cast<long>(order.volumes * all * blocks), args.share, args.shares);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t block = i % blocks, volume = i / blocks / all;
      const int64_t frame = frames[static_cast<size_t>(i / blocks % all)];
      float* to = args.at<float>(target) + i * floats;
      if (frame < 0) {
        std::fill(to, to + floats, 0.0F);
        continue;
      }
      const float* from = args.at<const float>(source) + ((volume * blocks + block) * order.frames + frame) * floats;
      std::copy(from, from + floats, to);
      if (block + 1 < blocks || in_last == order.lanes) continue;
      // The weights there are zero, too, but zero times infinity is none.
      for (int64_t pixel = 0; pixel < order.pixels; ++pixel)
        std::fill(to + pixel * order.lanes + in_last, to + (pixel + 1) * order.lanes, 0.0F);
    }
  };
  return step;
}

}  // namespace lathe
