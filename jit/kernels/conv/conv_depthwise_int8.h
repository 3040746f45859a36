#pragma once
// Depthwise convolution of bytes (each channel with its own window): one call computes a strip of rows of one channel
// block, over the whole width. A read brings a few neighbouring pixels of an input row into 32-bit lanes, one for each
// channel (Int8Dot); what they add to an output is one dot product. Sums are exact int32; all taps count, those beyond
// the picture with the border's value.
#include <memory>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/common/int8_store.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "jit/kernels/conv/conv_shape.h"

namespace lathe {

struct DepthwiseInt8Call {
  // The input rows of DepthwiseInt8Kernels::rows(), in the block; those beyond the picture: a row of the border.
  const char* const* rows = nullptr;
  const char* border = nullptr;   // at least one byte of its value
  const char* weights = nullptr;  // of this block: [row of the window][set of lanes][lane], 32 bits each
  char* target = nullptr;         // the strip's first output pixel
  const int32_t* init = nullptr;  // what sums begin with, of this block
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block
};

struct DepthwiseInt8Plan {
  Isa isa = Isa::avx2;
  Int8Dot dot = Int8Dot::pairs;  // or u8s8: the kernel makes signed bytes unsigned, their border's too
  bool is_signed = false;        // the input
  int rows = 1, cols = 1;        // pixels in registers
  int step = 1;                  // from a read's first pixel to the next one's; at most group_of(dot)
  // Input 0: the sum as float32. Other inputs are f32, i32, u8 or i8. None: int32 sums.
  ConvEpilogue epilogue;
  Int8Store store = {DType::i32};
};
std::string to_string(const DepthwiseInt8Plan& plan);

// Which taps of a row of the window a read's pixels meet: -1: none.
using DepthwiseLanes = std::vector<int>;
struct DepthwiseUse {
  int64_t col = 0;  // output pixel of the tile
  int set = 0;      // of DepthwiseReads::sets
};
struct DepthwiseRead {
  int64_t first = 0;  // its first pixel, from the input pixel under the tile's origin
  std::vector<DepthwiseUse> uses;
};
// How outputs side by side are put together from reads; the same in all rows of the window.
struct DepthwiseReads {
  std::vector<DepthwiseRead> reads;
  std::vector<DepthwiseLanes> sets;  // that differ, in the order in which outputs use them first
};
DepthwiseReads make_depthwise_reads(const ConvAxis& axis, int group, int step, int64_t cols);

// Dot products of a whole picture and what reads cost, to compare plans by.
struct DepthwiseInt8Work {
  double products = 0, reads = 0, stores = 0, tiles = 0;
};
DepthwiseInt8Work depthwise_int8_work(const DepthwiseInt8Plan& plan, const ConvShape& shape);

struct DepthwiseInt8Strip {
  int entry = 0;      // of DepthwiseInt8Kernels
  int64_t begin = 0;  // its first output row
};

class DepthwiseInt8Kernels {
 public:
  using Function = void(const DepthwiseInt8Call*);
  static constexpr int kMostRows = 64;  // that a strip reads
  // Requires: the shape's output is stored whole (step 1). Throws JitError.
  static DepthwiseInt8Kernels make(const DepthwiseInt8Plan& plan, const ConvShape& shape);

  Function* entry(int i) const { return code_.entry(i); }
  // Input rows that its strips read, from the one under the strip's first output row.
  const std::vector<int64_t>& rows(int i) const { return rows_[static_cast<size_t>(i)]; }
  const std::vector<DepthwiseInt8Strip>& strips() const { return strips_; }

 private:
  KernelSet<Function> code_;
  std::vector<std::vector<int64_t>> rows_;
  std::vector<DepthwiseInt8Strip> strips_;
};

}  // namespace lathe
