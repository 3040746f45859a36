#pragma once
// How the input of a convolution of integers is brought into the form that the kernels read: groups of channels that
// fill 32 bits, as unsigned bytes or 16-bit integers less the zero point, with the border where it is not zero.
#include <optional>

#include "jit/kernels/common/int8_dot.h"
#include "ops/conv/conv_node.h"
#include "ops/lower.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {

struct ConvInt8Input {
  // `type`: u8 or i8; blocked by `lanes`, or plain with fewer channels. `zero`: nullopt when each run has its own.
  ConvInt8Input(const TensorType& type, const ConvNode& conv, Int8Dot dot, std::optional<int32_t> zero, int lanes);

  // Pixels of few channels end to end, where groups that cross their borders are fewer: the convolution that this is
  // then, of one group, and of weights with the values of a row of the window behind each other. False: no gain.
  bool flatten(const ConvNode& conv, Int8Dot dot);
  ConvNode flat_conv(const ConvNode& conv, Int8Dot dot) const;
  Tensor flat_weights(const Tensor& weights, Int8Dot dot) const;

  // Bytes become less by this, and so does the zero point: of unsigned ones, as which signed ones are read, too. None
  // may be less than `by`. Requires: bytes in blocks.
  void move_down(int32_t by);

  // The step, if there is one to do; gives the buffer that the kernels read. `zero_at`: the zero point, when the run
  // has it.
  BufferId add_step(const LowerContext& context, BufferId from, BufferId zero_at) const;
  // The zero point that sums still have in them, when the input's is `point`.
  int32_t zero_in_sums(int32_t point) const { return widens ? 0 : point + (is_signed ? 128 : 0) - moved_down; }
  int32_t zero_at(const void* point) const noexcept {
    return is_signed ? *static_cast<const int8_t*>(point) : *static_cast<const uint8_t*>(point);
  }

  bool is_plain = false, widens = false, is_signed = false, is_needed = false;
  int32_t zero = 0;                                       // what the border holds, or (widens) what is subtracted
  int64_t channels = 0, lanes = 0;                        // of the tensor; of a block
  int64_t planes = 0, rows = 0, cols = 0;                 // images or blocks; pixels
  int64_t top = 0, left = 0, out_rows = 0, out_cols = 0;  // with the border
  int64_t pixel_bytes = 0;                                // of the result
  int unit_bytes = 0;                                     // flat: positions along a row; 0: not flat
  int32_t moved_down = 0;

 private:
  void add_border(const Window& window);
  int64_t row_bytes() const { return round_up(out_cols * pixel_bytes, 4); }
  int element_bytes() const { return widens ? 2 : 1; }
  void interleave_flat(const uint8_t* row, uint8_t* out) const noexcept;
  uint8_t flip() const { return is_signed && !widens ? 0x80 : 0; }  // signed bytes become unsigned
  uint8_t stored(uint8_t byte) const { return static_cast<uint8_t>((byte ^ flip()) - moved_down); }
  void fill_row(const void* from, void* to, int64_t item) const noexcept;
  void widen_all(const void* from, void* to, const StepArgs& args) const noexcept;
  void interleave(const uint8_t* row, uint8_t* out) const noexcept;
};

}  // namespace lathe
