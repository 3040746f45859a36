#pragma once
// What remains to be done with the sums of a convolution that lie in memory, one block of channels: bias and epilogue.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "src/base/cpu.h"

namespace lathe {

struct ConvFinishCall {
  float* target = nullptr;                                // [pixel][lane]
  const float* bias = nullptr;                            // of the block; read by plans with a bias
  int64_t bytes = 0;                                      // of the pixels, > 0
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block
};

struct ConvFinishPlan {
  Isa isa = Isa::avx2;
  bool has_bias = false;
  ConvEpilogue epilogue;

  bool is_empty() const { return !has_bias && !epilogue.expression; }
};
std::string to_string(const ConvFinishPlan& plan);

using ConvFinish = Kernel<void(const ConvFinishCall*)>;
// From the process's code cache. Throws JitError when the epilogue needs too many registers.
ConvFinish conv_finish(const ConvFinishPlan& plan);

}  // namespace lathe
