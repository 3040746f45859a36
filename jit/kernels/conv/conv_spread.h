#pragma once
// A transposed convolution of 2x2 windows that lie side by side (stride 2, no padding), from pixels in channel blocks
// to few plain planes: the head of a network that paints a picture. Each part of four lanes sums one pixel's window.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "src/base/cpu.h"

namespace lathe {

struct SpreadPlan {
  Isa isa = Isa::avx2;
  int in_channels = 1;
  int channels = 1;       // of the result, 1 .. 4
  ConvEpilogue epilogue;  // its operands are scalars
  // Pixels that are done together: a row has no fewer.
  int tile_pixels() const;
  // 4: each of four channels meets the value of the window that lies so many turns on from its place among them, and
  // the four sums are turned back at the end: no channel is spread over its part first. 1: no registers for that.
  int turns() const;
  bool is_valid() const;
};
std::string to_string(const SpreadPlan& plan);

struct SpreadArgs {
  const float* source;   // a row of pixels of one block of channels
  const float* weights;  // [in_channels in fours][channels][4]; see packed_weight()
  const float* bias;     // [channels][4]
  float* target;         // the window's upper row in plane 0
  int64_t block_bytes;   // from one block of channels to the next
  int64_t row_bytes;     // from the window's upper row to its lower one
  int64_t plane_bytes;
  int64_t pixels;  // at least tile_pixels()
  const void* const* operands;
};
// Which of the model's weights [in_channels][channels][4] is at this place of the packed ones; -1: zero.
int64_t packed_weight(const SpreadPlan& plan, int64_t place);
using SpreadFn = void(const SpreadArgs* args);
// Throws JitError for a plan that is not valid.
Kernel<SpreadFn> spread_kernel(const SpreadPlan& plan);

}  // namespace lathe
