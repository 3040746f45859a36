#pragma once
// Direct convolution: one call computes a run of tiles of pixels, one after the other, for a few blocks of output
// channels, over a chunk of input channels. Accumulators stay in registers; only taps that touch the input are emitted.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "jit/kernels/conv/conv_tiling.h"
#include "src/base/cpu.h"

namespace lathe {

// Arguments of one call, which moves source, target and full operands along and counts tiles down. Weights come in the
// order in which they are used: [input block][tap][channel of the block][output block][lane]; an input block is one
// channel of a plain input.
struct ConvCall {
  const float* source = nullptr;  // the first tile's origin in the first input block
  const float* weights = nullptr;
  float* target = nullptr;         // the first tile's first pixel in the first output block
  const float* bias = nullptr;     // of the first output block; read by plans with a bias
  const char* prefetch = nullptr;  // weights that come later
  int64_t prefetch_step = 0;       // bytes; 0 repeats the same line
  int64_t tiles = 1;
  int64_t source_step_bytes = 0, target_step_bytes = 0;   // from one tile to the next
  int64_t blocks = 0;                                     // whole input blocks
  int64_t has_tail = 0;                                   // then one more input block of ConvKernelPlan::tail channels
  int64_t accumulate = 0;                                 // add target instead of bias
  int64_t finish = 0;                                     // the last chunk: apply the epilogue
  int64_t source_block_bytes = 0;                         // from one input block to the next
  int64_t target_block_bytes = 0;                         // from one output block to the next
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the first output block
};

// Exactly which input channels are read, where groups of channels do not fill blocks: `count` of them, behind the first
// `skipped` of the first block. The first `lead` feed only the first half of the outputs' lanes (AVX-512 only).
struct ConvChannels {
  int skipped = 0, count = 0, lead = 0;
  bool operator==(const ConvChannels&) const = default;
};
// Their parts that lie in one input block: packed weights have one part behind the other.
struct ConvChannelPart {
  int block = 0, first = 0, count = 0;  // channels of the block
  bool is_lead = false;
};
std::vector<ConvChannelPart> parts_of(const ConvChannels& channels, int lanes);

// Lines of the input to fetch with each input block: those that the tiles below are the first to read.
struct ConvBelow {
  int64_t first_byte = 0;  // from the tile's origin
  int64_t row_bytes = 0;   // from one row to the next
  int rows = 0, lines = 0;
  bool operator==(const ConvBelow&) const = default;
};

// Everything that the code depends on, besides the shapes of the tiles.
struct ConvKernelPlan {
  Isa isa = Isa::avx2;
  int blocks = 1;          // output blocks in registers
  bool embedded = false;   // broadcast as operand of the multiply-add (AVX-512 only), else by loads of their own
  int unroll = 4;          // channels in one round of the inner loop
  int lanes = 16;          // channels of an input block: 1 when the input is plain
  int tail = 0;            // channels of the last input block when it is not whole
  ConvChannels channels;   // unless its count is 0, read in place of all those of ConvCall::blocks; lead: of one block
  int prefetch_lines = 0;  // in each round
  int ahead_lines = 0;     // of the target and of full operands, with each input block: they are there when it ends
  bool half_last = false;  // at most half of the last output block's lanes are channels (AVX-512 only)
  // So many neighbouring pixels' sums of the last output block share a register: 2 or 4, where at most 8 or 4 of its
  // lanes are channels (AVX-512, two blocks or more, not embedded). They are multiplied once for all of them.
  int last_share = 1;
  // Not 0: so many channels of one output block, at most kMostDots, whose sums run along the lanes of the input's
  // blocks and are added up across them at the end. Weights then lie as [input block][tap][output][channel], each tap
  // in as much memory as otherwise. Not embedded; a tail has no fewer channels than there are outputs.
  int dots = 0;
  // With dots: they are the channels of each group of as many inputs, 2, 4 or 8. Sum number r of an input's lane i is
  // the part of output i ^ r, and weights lie as [input block][tap][r][channel].
  bool has_narrow_groups = false;
  static constexpr int kMostDots = 4;
  int source_lines = 0;  // behind the tile's pixels, of each input block: the next tile's
  ConvBelow below;
  bool has_bias = false;
  ConvEpilogue epilogue;
};
std::string to_string(const ConvKernelPlan& plan);

// Registers suffice for tiles of `pixels`.
bool fits_registers(const ConvKernelPlan& plan, int pixels);

// Machine code for a set of tile shapes.
class ConvKernels {
 public:
  using Function = void(ConvCall*);
  // From the process's cache, or emitted now. Throws JitError.
  static ConvKernels make(const ConvKernelPlan& plan, std::span<const ConvTileShape> shapes);

  Function* entry(int shape) const { return code_.entry(shape); }
  int prefetch_lines() const { return prefetch_lines_; }  // in each round
  // Rounds of the inner loop (each prefetches its lines) for one whole input block, or for all of plan.channels.
  int rounds(int shape) const { return rounds_[static_cast<size_t>(shape)]; }

 private:
  KernelSet<Function> code_;
  std::vector<int> rounds_;
  int prefetch_lines_ = 0;
};

}  // namespace lathe
