#pragma once
// The transforms of Winograd's convolution for square windows, on channel blocks: between tiles of pixels, one vector a
// pixel, and `size` x `size` frequencies, each a matrix with a row for every tile. The products between the two are
// matrix products (gemm.h).
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/conv_epilogue.h"
#include "src/base/cpu.h"

namespace lathe {

// F(outputs x outputs, taps x taps).
struct WinogradForm {
  int outputs = 4, taps = 3;
  int size() const { return outputs + taps - 1; }
  int frequencies() const { return size() * size(); }
  bool operator==(const WinogradForm&) const = default;
};

// Arguments of one call: a run of tiles of one channel block.
struct WinogradCall {
  const float* source = nullptr;  // input: the first tile's corner, which may be outside; output: its first frequency
  float* target = nullptr;        // the other way round
  int64_t tiles = 1;              // >= 1
  int64_t source_step_bytes = 0;  // from tile to tile
  int64_t target_step_bytes = 0;
  int64_t row_bytes = 0;                                  // from one row of pixels to the next
  int64_t frequency_bytes = 0;                            // from one frequency to the next
  const float* bias = nullptr;                            // of the block; read by plans with a bias
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block; changed
};
using WinogradKernel = Kernel<void(WinogradCall*)>;

// The pixels of an input tile that exist: others are zeros.
struct WinogradInputPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int first_row = 0, last_row = 0;  // [first, last)
  int first_column = 0, last_column = 0;
};
std::string to_string(const WinogradInputPlan& plan);

struct WinogradOutputPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int rows = 0, columns = 0;  // pixels that are stored
  bool has_bias = false;
  ConvEpilogue epilogue;
};
std::string to_string(const WinogradOutputPlan& plan);

// From the process's cache, or emitted now. Throw JitError.
WinogradKernel winograd_input(const WinogradInputPlan& plan);
WinogradKernel winograd_output(const WinogradOutputPlan& plan);

}  // namespace lathe
