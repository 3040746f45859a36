#pragma once
// Direct convolution of integers: one call computes one tile of pixels for a few blocks of output channels, over all
// input channels. A pixel of an input block is a few 32-bit groups of channels (Int8Dot); sums are int32 and stay in
// registers; only taps that touch the input are emitted.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "jit/expression/vector_program.h"
#include "jit/kernel.h"
#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/common/int8_store.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {

// Arguments of one call: tiles of the same shape, at a steady pace, of one panel of output blocks or of several of the
// same width one after the other. Weights come in the order in which they are used:
// [input block][tap][group of the block][output block][lane]. The call moves all addresses behind what it has done, and
// counts the tiles down.
struct ConvInt8Call {
  const char* source = nullptr;  // the first tile's origin in the first input block
  const char* weights = nullptr;
  char* target = nullptr;         // the first tile's first pixel in the first output block
  const int32_t* init = nullptr;  // what sums begin with, of the first output block
  // Int8Dot::crossed: what is taken off a pixel's sums, where the first tap's position in an input block is; at the
  // first tile's origin. No pixel lacks a tap.
  const int32_t* terms = nullptr;
  // Int8Dot::u8s8_halved: what is large in an input block, of any pixel that the tile reads; of the first tile, in the
  // first input block.
  const LargeBytes* large = nullptr;
  const char* prefetch = nullptr;
  int64_t prefetch_step = 0;                 // bytes; 0 repeats the same line
  int64_t blocks = 0;                        // whole input blocks, at least one
  int64_t source_block_bytes = 0;            // from one input block to the next
  int64_t target_block_bytes = 0;            // from one output block to the next
  int64_t tiles = 1;                         // at least one; of all panels
  int64_t source_step = 0, target_step = 0;  // bytes from one tile to the next
  // Of the epilogue: moved like target (full), or to the first output block; to the next output block; to the next
  // tile.
  const void* operands[ConvEpilogue::kMaxOperands] = {};
  int64_t operand_block_bytes[ConvEpilogue::kMaxOperands] = {};
  int64_t operand_step[ConvEpilogue::kMaxOperands] = {};
  int64_t tiles_in_panel = int64_t{1} << 62;  // unless there is one panel
  int64_t prefetch_until = 0;  // the tile of each panel, counted from 1, that is the first to prefetch nothing; 0: none
  // In bytes, from behind a panel's last tile to the next one's first; from panel to panel.
  int64_t source_turn = 0, target_turn = 0, weights_turn = 0, init_turn = 0;
  int64_t operand_turn[ConvEpilogue::kMaxOperands] = {};
  int64_t terms_step = 0, terms_turn = 0;
  int64_t large_block_bytes = 0, large_turn = 0;  // from one input block to the next; tiles are a byte apart
  int64_t starts_left = 0, ends_left = 0, prefetches_left = 0;  // the call's own
};

// Everything that the code depends on, besides the shapes of the tiles.
struct ConvInt8Plan {
  Isa isa = Isa::avx2;
  Int8Dot dot = Int8Dot::pairs;
  int blocks = 1;          // output blocks in registers
  int unroll = 4;          // groups in one round of the inner loop
  int groups = 4;          // of an input block
  int tail = 0;            // of the last input block when it is not whole
  int prefetch_lines = 0;  // in each round
  // The first input blocks of a tile are straight code, and finish the outputs of the tile before; ConvInt8Call::blocks
  // is at least this, and there is no tail. 0: tile after tile.
  int ahead = 0;
  // In the epilogue: of use where outputs are finished beside products.
  BytesTimesConstants bytes = BytesTimesConstants::multiplied;
  // Input 0: the sum as float32. Other inputs are f32, i32, u8 or i8. None: int32 sums.
  ConvEpilogue epilogue;
  // With an epilogue whose result is float32: how it is stored. Without: i32.
  Int8Store store = {DType::i32};
};
std::string to_string(const ConvInt8Plan& plan);

// Registers suffice for tiles of `pixels`.
bool fits_registers(const ConvInt8Plan& plan, int pixels);

// Machine code for a set of tile shapes, made with ConvShape::lanes = groups and out_lanes = the bytes of one pixel of
// an output block / 4.
class ConvInt8Kernels {
 public:
  using Function = void(ConvInt8Call*);
  // From the process's cache, or emitted now. Throws JitError.
  static ConvInt8Kernels make(const ConvInt8Plan& plan, std::span<const ConvTileShape> shapes);

  Function* entry(int shape) const { return entries_[static_cast<size_t>(shape)]; }
  explicit operator bool() const { return pages_ != nullptr; }
  void fetch_code() const noexcept { pages_->fetch(); }
  int prefetch_lines() const { return prefetch_lines_; }  // in each round
  // Rounds of the inner loop (each prefetches its lines) for one whole input block.
  int rounds(int shape) const { return rounds_[static_cast<size_t>(shape)]; }

 private:
  std::shared_ptr<const CodePages> pages_;
  std::vector<Function*> entries_;
  std::vector<int> rounds_;
  int prefetch_lines_ = 0;
};

}  // namespace lathe
