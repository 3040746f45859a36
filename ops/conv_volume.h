#pragma once
// Convolutions of volumes (three spatial axes: frame, y, x) as convolutions of pictures: a frame of the output is one
// of the input's frames that its window covers, their channels one behind the other. Two-dimensional kernels of every
// algorithm serve them so, at the price of one copy of the input.
#include <optional>
#include <vector>

#include "ops/conv_problem.h"
#include "ops/lower.h"

namespace lathe {

struct VolumeConv {
  ConvProblem problem;
  // The frames of each volume in the order in which the problem reads them, -1 for zeros; empty: as they lie.
  std::vector<int64_t> frames;
};

// What a node Conv of 3 spatial axes computes. nullopt: grouped channels of several frames.
std::optional<VolumeConv> volume_conv_of(const LowerContext& context);

// [out][in][frame][window] as [out][frame][in][window], `joined` as the problem counts its channels: with zeros
// between.
std::vector<float> joined_weights(const float* weights, int64_t in_channels, const ConvProblem& problem);

// `source` of `volumes` x `channels`, [block][frame][pixel][lane], as [frame][block][pixel][lane], of the frames
// listed. `lanes` 1: the source is plain. Lanes behind the last channel become zeros.
struct FrameOrder {
  int64_t volumes, channels, frames, pixels;
  int lanes;
};
Step take_frames_step(BufferId source, BufferId target, const FrameOrder& order, const std::vector<int64_t>& frames,
                      int threads);

}  // namespace lathe
