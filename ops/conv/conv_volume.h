#pragma once
// Convolutions of volumes (three spatial axes: frame, y, x) as convolutions of pictures: a frame of the output is one
// of the input's frames that its window covers. Their channels lie one behind the other, so that two-dimensional
// kernels of every algorithm serve them; where channels are grouped, their rows lie one below the other instead. The
// price is one copy of the input.
#include <vector>

#include "ops/conv/conv_problem.h"
#include "ops/lower.h"

namespace lathe {

// The frames of each volume as a problem reads them.
struct FrameOrder {
  std::vector<int64_t> frames;  // by place; -1: zeros. Empty: all, as they lie
  int64_t top = 0, bottom = 0;  // rows of zeros around each
};

struct VolumeConv {
  ConvProblem problem;
  FrameOrder frames;
};

// What a node Conv of 3 spatial axes computes.
VolumeConv volume_conv_of(const LowerContext& context);

// [out][in][frame][window] as [out][frame][in][window], `joined` as the problem counts its channels: with zeros
// between.
std::vector<float> joined_weights(const float* weights, int64_t in_channels, const ConvProblem& problem);

// `dims`: [volume][channel][frame][y][x] of `source`, in blocks of `lanes` channels; 1: plain. The target is in the
// order in which the problem reads, lanes behind the last channel being zeros.
Step take_frames_step(BufferId source, BufferId target, const Dims& dims, int lanes, const FrameOrder& order,
                      bool are_outer, int threads);

}  // namespace lathe
