#pragma once
// Depthwise convolution (each channel with its own window, or several): one call computes a strip of rows of one block
// of output channels, over the whole width. Taps outside the input are not emitted. How wide and high the pictures are
// is not in the code: strips of pictures of many sizes are cut into tiles that see the borders alike.
#include <memory>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "jit/kernels/conv/conv_shape.h"
#include "src/base/cpu.h"

namespace lathe {

struct DepthwiseCall {
  const float* source = nullptr;   // the block's input row at which the strip's first output row begins, pads aside
  const float* weights = nullptr;  // [tap][lane]
  float* target = nullptr;         // the strip's first output pixel
  const float* bias = nullptr;     // of this block; read by plans with a bias
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block
  int64_t source_row = 0, target_row = 0;                 // bytes from one row of a picture to the next
  const int64_t* repeats = nullptr;                       // by run of equal tiles in a strip
  const int32_t* lanes = nullptr;  // of the source, by lane of this block; read by plans with a multiplier
};

struct DepthwisePlan {
  Isa isa = Isa::avx2;
  int rows = 1, cols = 1;  // pixels in registers
  int multiplier = 1;      // output channels of an input channel, side by side
  bool has_bias = false;
  ConvEpilogue epilogue;
};
std::string to_string(const DepthwisePlan& plan);

struct DepthwiseStrip {
  int kernel = 0;      // of DepthwiseKernels
  int64_t source = 0;  // bytes from the plane's begin; may be outside
  int64_t target = 0;
};

class DepthwiseKernels {
 public:
  using Function = void(const DepthwiseCall*);
  // Requires: the shape's output is stored whole (step 1). Throws JitError.
  static DepthwiseKernels make(const DepthwisePlan& plan, const ConvShape& shape);

  // What all calls have in common, valid as long as this object.
  DepthwiseCall call() const;
  // DepthwiseCall::lanes.
  const int32_t* lanes_of(int64_t block) const;
  Function* entry(const DepthwiseStrip& strip) const { return kernels_[static_cast<size_t>(strip.kernel)].entry(); }
  const std::vector<DepthwiseStrip>& strips() const { return strips_; }

 private:
  std::vector<Kernel<Function>> kernels_;  // by how a strip sees the upper and the lower border
  std::vector<DepthwiseStrip> strips_;
  std::vector<int64_t> repeats_;
  std::vector<std::vector<int32_t>> source_lanes_;  // by block, of as many as the plan has multiples, or none
  int64_t source_row_ = 0, target_row_ = 0;
};

// The plan by rule: as many pixels as registers hold. An epilogue may need some of them: then make() throws.
DepthwisePlan choose_depthwise_plan(Isa isa, const ConvShape& shape);

}  // namespace lathe
