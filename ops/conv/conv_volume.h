#pragma once
// Convolutions of volumes (three spatial axes: frame, y, x) as convolutions of pictures: a frame of the output is one
// of the input's frames that its window covers. Their channels lie one behind the other, so that two-dimensional
// kernels of every algorithm serve them; where channels are grouped, their rows lie one below the other instead. The
// price is one copy of the input.
#include <vector>

#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_source.h"
#include "ops/lower.h"

namespace lathe {

struct VolumeConv {
  ConvProblem problem;
  FrameOrder frames;
};

// What a node Conv of 3 spatial axes computes.
VolumeConv volume_conv_of(const LowerContext& context);

// [out][in][frame][window] as [out][frame][in][window], `joined` as the problem counts its channels: with zeros
// between.
std::vector<float> joined_weights(const float* weights, int64_t in_channels, const ConvProblem& problem);

}  // namespace lathe
