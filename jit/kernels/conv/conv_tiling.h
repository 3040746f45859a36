#pragma once
// Cuts the output pixels of a convolution into tiles, and tells which tiles can run the same code.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "jit/kernels/conv/conv_shape.h"

namespace lathe {

// One pixel of a tile that a tap contributes to; `source` is the byte offset of its input from the tile's origin.
struct ConvUse {
  int pixel = 0;
  int32_t source = 0;
  bool operator==(const ConvUse&) const = default;
};

// `run` consecutive taps of the weights' order, `index` the first, whose inputs follow each other in memory (run is 1
// when the input is blocked). Only taps that touch the input are listed, with the pixels for which they do.
struct ConvTapRun {
  int index = 0;
  int run = 1;
  std::vector<ConvUse> uses;
  bool operator==(const ConvTapRun&) const = default;
};

// What one tile's code depends on.
struct ConvTileShape {
  int pixels = 0;
  int taps_in_window = 0;  // weights of all of them lie in memory
  std::vector<ConvTapRun> taps;
  std::vector<int32_t> stores;  // byte offset of each pixel's vector from the tile's first
  bool operator==(const ConvTileShape&) const = default;
};

// 128 bits over everything in the shapes: kernels of equal shapes are shared between sizes of pictures.
std::string key_of(std::span<const ConvTileShape> shapes);

struct ConvTile {
  int shape = 0;       // index into ConvTiling::shapes
  int64_t source = 0;  // bytes from the input plane to the tile's origin; may be negative or outside
  int64_t target = 0;  // bytes from the output plane to the tile's first pixel
  // From this tile on, so many are of one shape and equally far from each other, by these bytes.
  int64_t alike = 1, source_step = 0, target_step = 0;
};

struct ConvTiling {
  std::vector<ConvTileShape> shapes;
  std::vector<ConvTile> tiles;  // in the order of the output pixels
};

// Tiles of at most rows x cols pixels, sizes balanced. rows 0: runs of `cols` pixels that go on over ends of rows.
// `out_lanes`: channels stored together. Throws JitError when offsets leave 32 bits.
ConvTiling make_conv_tiling(const ConvShape& shape, int rows, int cols, int out_lanes);

// Pixels of part i when `count` is cut into ceil(count / most) parts of nearly equal size.
struct ConvPart {
  int64_t begin = 0, size = 0;
};
std::vector<ConvPart> balanced_parts(int64_t count, int64_t most);
// The same, larger parts first, so that equal ones lie together.
std::vector<ConvPart> sorted_parts(int64_t count, int64_t most);

// Outputs of an axis and which of their taps fall into the input, as text: the same code serves parts of equal text.
std::string valid_taps(const ConvAxis& axis, const ConvPart& part);

}  // namespace lathe
