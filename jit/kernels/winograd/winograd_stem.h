#pragma once
// Winograd's convolution with stride 2 from a plain picture of few channels, up to its products. Here lanes are
// frequencies along x, not channels: of every row of a tile, two halves of kStemHalf values, one for each phase of the
// columns. A transformed tile is [channel][frequency along y: those of phase 0, then of phase 1][2 * kStemHalf], and
// the products read it by broadcasts from wherever their factors lie.
#include <cstdint>
#include <string>

#include "jit/kernels/winograd/winograd.h"

namespace lathe {

inline constexpr int kStemHalf = 8, kStemRow = 2 * kStemHalf;  // floats
inline constexpr int kStemMostRows = 2 * kStemHalf;            // of pixels in a tile

inline int stem_rows(const WinogradForm& form) { return form.rows(0) + form.rows(1); }
inline int64_t stem_tile_floats(const WinogradForm& form, int64_t channels) {
  return channels * stem_rows(form) * kStemRow;
}
// Pixels along one side of a tile.
inline int stem_window(const WinogradForm& form) { return form.stride * (form.outputs - 1) + form.taps; }

// Along x: one row of pixels, with zeros where there are none, becomes a row of every tile.
struct StemAcrossCall {
  const float* source = nullptr;  // the first tile's first pixel
  float* target = nullptr;        // kStemRow floats a tile
  int64_t tiles = 1;
};
Kernel<void(StemAcrossCall*)> stem_across(Isa isa, const WinogradForm& form);

// Along y, of one channel.
struct StemDownCall {
  const float* rows[kStemMostRows] = {};  // the first tile's, by row of pixels
  float* target = nullptr;                // the channel's part of the first transformed tile
  int64_t tiles = 1;
  int64_t target_step_bytes = 0;
};
Kernel<void(StemDownCall*)> stem_down(Isa isa, const WinogradForm& form);

// The products of one frequency: sums of `rows` tiles and `vecs` vectors of output channels at a time. Weights lie as
// in winograd_weights.h: [slot][channel][vecs].
struct StemProductPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int channels = 3;
  int row_phases = 2, column_phases = 2;  // that have the frequency
  int rows = 1, vecs = 1;
};
struct StemProductCall {
  const float* tiles = nullptr;  // the first transformed tile's value of the frequency
  const float* weights = nullptr;
  float* target = nullptr;
  int64_t count = 1;              // times `rows` tiles
  int64_t target_step_bytes = 0;  // from tile to tile
};
std::string to_string(const StemProductPlan& plan);
Kernel<void(StemProductCall*)> stem_product(const StemProductPlan& plan);

}  // namespace lathe
