#pragma once
// A depthwise convolution bound to its kernels.
#include <vector>

#include "jit/kernels/conv/conv_depthwise.h"
#include "ops/conv/conv_program.h"
#include "src/base/thread_team.h"

namespace lathe {

// One input channel for each output channel, in blocks; it may be the same for several, side by side.
bool is_depthwise(const ConvProblem& problem);

// Shares of planes of so many strips each.
ConvSplit split_planes(double flop, int strips, int64_t batch, int threads);

class DepthwiseProgram {
 public:
  // Requires: is_depthwise(problem). Throws JitError.
  DepthwiseProgram(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes = {});

  const ConvProblem& problem() const { return problem_; }
  std::string packing() const;
  int64_t packed_size() const;
  void pack(const float* weights, float* packed) const;
  int shares() const { return split_.count(); }
  static bool reads_all() { return false; }
  void run(const ConvArguments& arguments, int share) const noexcept;
  // Of the first image only, some channel blocks. Requires: as many input as output channels.
  void run_blocks(const ConvArguments& arguments, int64_t begin, int64_t end) const noexcept;
  std::string plan_text() const;

 private:
  // `strips` of each plane; `units` counts them over the planes of all images.
  void run_units(const ConvArguments& arguments, const Range& units, const Range& strips) const noexcept;

  ConvProblem problem_;
  DepthwisePlan plan_;
  ConvSplit split_;  // pixels: strips of each plane
  std::vector<int64_t> operand_batch_bytes_;
  DepthwiseKernels kernels_;
};

}  // namespace lathe
